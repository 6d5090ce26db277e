"""Secure aggregation: the server learns the sum of what sites upload, and no single upload.

The protocol is that of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine
Learning, CCS 2017, in which every site is every other's neighbour (SecAgg+ of Bell et al., CCS
2020, with the complete graph), for a server that is curious and keeps to the protocol:

1. After its trip a site offers two public keys.
2. It draws a seed, and shares the seed and the private key of its masks among all (Shamir).
3. It sends its upload under masks: one of its own seed, and one for every other site, which that
   site takes away. A sum over all has the masks of seeds alone.
4. For sites that are left, the others give shares of the seed; for those that went away after step
   2, of the private key; never both of one site.

`terms` says how numbers become elements of a ring, `layout` which; `ring` and `agreement` hold the
primitives, `member` is a site's half, `tally` the server's. `covers` refuses methods that need more
than sums, and `summed` stands for the uploads that nobody has.
"""
