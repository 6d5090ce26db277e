"""What crosses between server and clients, and what stays, seen by playing a method.

Nothing is declared by hand but the kinds of content (`Method.content`), so that what is printed is
what happens. `observe` plays and writes down, `fedshift.wire.words` makes tables and sentences.
"""

from fedshift.wire.items import Item, Wire
from fedshift.wire.observe import observe

__all__ = ["Item", "Wire", "observe"]
