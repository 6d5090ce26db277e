"""Federations over real machines: the same methods, carried between a server and sites by Flower.

`site.py` is what a site does with a message, `remote.py` what the server does with the answers;
both are plain objects that know nothing of Flower and speak in `codec.Message`s. `apps.py` and
`simulation.py` carry those by Flower, `node.py` and `deploy.py` start its processes. Nothing is
imported here, so that everything but those four works where Flower is not installed.
"""
