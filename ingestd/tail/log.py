"""Log: a path that somebody writes to, and its generations, oldest first. Decides what is read, and in which order.

Pure: no I/O, no clock. `Log.step` takes a fact and gives commands; the finder gathers the facts and carries them out.

A generation is one content of a file. Renamed, copied, compressed or deleted, it stays the same generation. If the file
is truncated and written again, it holds the next one. Each is a source of its own. So an acknowledgement never counts
for another content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ingestd.daemon.source import Loss
from ingestd.tail.facts import (
    DAMAGED,
    DELETED,
    GONE,
    TRUNCATED,
    Alone,
    Answered,
    Arrived,
    Await,
    Bury,
    Command,
    Conclude,
    Copy,
    Deleted,
    Empty,
    Ended,
    Examine,
    Examined,
    Fact,
    Forget,
    Gone,
    Keep,
    Listed,
    Look,
    Lose,
    Missed,
    Occupied,
    Old,
    Place,
    Plain,
    Read,
    Refuse,
    Refused,
    Repeat,
    Repeated,
    Seek,
    Seen,
    Sought,
    Taken,
    Unreadable,
    Untold,
)
from ingestd.tail.generation import NOTHING, Generation, Phase
from ingestd.tail.log_state import LogState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingestd.daemon.source import End
    from ingestd.tail.file_id import FileId
    from ingestd.tail.known import Known, Witness

__all__ = ["Log"]

_SEARCHES_MOST: Final = 5


class Log(LogState):
    """One log.

    Invariants
        While the content of an older generation is looked for, no newer one begins, unless its disk is not there.
        What ends unread is read elsewhere, or said to be lost.
    """

    __slots__ = ()

    def step(self, fact: Fact) -> list[Command]:  # noqa: C901, PLR0911, PLR0912 - one for each fact
        """Take a fact. Returns what is to be done, in order."""
        match fact:
            case Seen(place, here):
                return [*self._seen(place, here=here)]
            case Occupied(file):
                self._here = file
                return [*self._supersede()]
            case Examined():
                return [*self._examined(fact)]
            case Repeated():
                return [*self._repeated(fact)]
            case Gone():
                return [*self._confirm_copies(fact)]
            case Answered(file):
                return [*self._answered(file)]
            case Taken(file):
                taken = self.of(file)
                return [] if taken is None else [*self._drop(taken)]
            case Arrived():
                return [*self._seek_replaced()]
            case Listed():
                return [*self._listed()]
            case Alone(file):
                return [*self._alone(file)]
            case Missed(since):
                self._missed = self._overtaken = bool(self.generations)
                if not self.generations:
                    self.new_since = self.new_since or self.since or since
                if since and self._missed:
                    self._look_back(since)
                return []
            case Sought():
                return [*self._sought(fact)]
            case Ended(source, end, known):
                return [*self._ended(self.named(source), end, known)]
            case Deleted(source):
                return [*self._deleted(source)]

    # What is seen.

    def _seen(self, place: Place, *, here: bool) -> Iterator[Command]:
        generation = self.of(place.file)
        if here:
            self._here = place.file
            followed = generation is not None and generation.copy_of is None and generation.phase is not Phase.STORED
            if followed and generation is self.generations[-1]:
                self._missed = False  # what came and went would have been seen by its reader
        if generation is None:
            yield from self._meet(place)
            return
        overwritten = self._may_be_overwritten(generation, place)
        waits = overwritten or self._may_have_followers(generation, place, here=here)
        if generation.phase is Phase.STORED and waits:
            generation.known = generation.known._replace(path=place.path)  # the search begins there
            if overwritten:
                self._changed[place.file] = place.path
        else:
            if generation.phase is Phase.STORED and generation.known.done and generation is self.generations[-1]:
                self._missed = True  # it was over in the last run already
            yield from self._meet_again(generation, place)
        if here:
            yield from self._supersede()

    def _meet(self, place: Place) -> Iterator[Command]:
        if place.file in self._copies:
            self._copies[place.file] = place, self._copies[place.file][1]
        elif self._unsettled:
            self._waiting[place.file] = place
        elif self.new_since and not self.generations and place.links == 1:  # else another log may wait with it
            self._overtaken = True
            yield from self._empty(place._replace(size=0))  # as if nothing were in it: what came before it is first
            yield from self._seek_unseen()
        else:
            yield Examine(place)

    def _meet_again(self, generation: Generation, place: Place) -> Iterator[Command]:
        known = generation.known
        generation.links, generation.size = place.links, place.size
        # What is compressed to an empty file may be given its name only then.
        codec = (generation.copy_of == NOTHING and place.codec) or known.codec
        if (known.path, known.file, known.codec) != (place.path, place.file, codec) or known.links < place.links:
            links = max(known.links, place.links)
            known = known._replace(path=place.path, file=place.file, codec=codec, links=links)
            self.generations.know(generation, known)
        place = place._replace(codec=codec)
        # A compressed file is read whole, unless it is in the making; and read on if it is another one since.
        packed = known.codec and generation.copy_of != NOTHING
        complete = not generation.is_packed_anew(place) if packed else place.size == generation.position
        rewritten = complete and not packed and generation.is_modified(place)
        complete = complete or self.is_left_out(place.path)
        if rewritten:
            generation.phase = Phase.SOUGHT
            yield Seek(generation)
        elif generation.phase is Phase.STORED:
            if known.done and complete and generation.copy_of is None:
                generation.phase = Phase.DONE
                yield Keep(generation)
            elif generation.copy_of is None and (self.careful or generation.is_cut(place)):
                generation.phase = Phase.SOUGHT
                yield Seek(generation)
            else:
                yield from self._resume(generation, place)
            yield from self._release()
        elif generation.phase is Phase.HELD:
            self._waiting[place.file] = place
        elif generation.phase is Phase.DONE and complete:
            if generation.copy_of and 0 < generation.compared < place.modified and not generation.is_packed_copy:
                generation.compared = place.modified
                yield Examine(place)  # it may have been truncated, and as long again as it was
                return
            if generation.copy_of is not None and not known.apart:
                yield Await(place)
            if generation.copy_of == NOTHING and place.modified > known.modified:
                generation.known = known._replace(modified=place.modified)
                yield from self._seek_content(known.modified)  # it was written to, and truncated
        elif generation.phase is Phase.DONE:
            yield self._read_on(generation, place)

    def _read_on(self, generation: Generation, place: Place) -> Read | Keep | Examine:
        """It changed after it was read. A compressed file that grew may go on growing."""
        packed = bool(generation.known.codec)
        if generation.copy_of is not None or (place.size < generation.position and not packed):
            return Examine(place)
        command = self._read(generation)
        if packed:
            generation.grown = max(0, place.size - generation.known.read_size)
            generation.last = self.careful or not generation.grown or self._left(place.file)
        return command

    def _resume(self, generation: Generation, place: Place) -> Iterator[Command]:
        """Go on with what was found again. What was empty, or a copy, is examined first."""
        if not (generation.position or generation.known.witness or generation.known.begun):
            generation.copy_of = generation.copy_of or NOTHING
        yield from self._go_on(generation, place)

    def _go_on(self, generation: Generation, place: Place) -> Iterator[Command]:
        """Read it, or have it examined, once what is older is found."""
        if self._is_older_awaited(generation) or self._may_follow_unknown(generation, place):
            self._hold(generation, place)
        else:
            yield self._take_up(generation, place)

    def _take_up(self, generation: Generation, place: Place) -> Read | Keep | Examine:
        """Read it, or have it examined, now."""
        if generation.copy_of is None:
            return self._read(generation)
        generation.phase = Phase.DONE
        return Keep(generation) if generation.is_packed_copy else Examine(place)

    def _let_go(self, until: Generation | None) -> Iterator[Command]:
        """Take up what waits, from the oldest one on."""
        for each in self._unread(until):
            if each.phase is Phase.HELD:
                yield self._take_up(each, self._waiting.pop(each.known.file))

    def _supersede(self) -> Iterator[Command]:
        """Conclude files that left the path. Only a writer that has one open can still write to it."""
        for generation in self.generations:
            if not generation.last and generation.phase is Phase.READING and self._left(generation.known.file):
                generation.last = True
                yield Conclude(generation)

    # What is read.

    def _read(self, generation: Generation) -> Read | Keep:
        if self.is_left_out(generation.known.path):
            generation.phase = Phase.DONE
            return Keep(generation)
        generation.phase = Phase.READING
        generation.last = bool(generation.known.codec) or self._left(generation.known.file)
        generation.copy_of = None
        if generation.known.done:
            generation.known = generation.known._replace(done=False, copy_of="")
        return Read(generation)

    def _examined(self, examined: Examined) -> Iterator[Command]:
        place = examined.place
        known = self.of(place.file)
        was_empty = known is not None and known.unexamined
        # It came, was written to, copied perhaps, and truncated before anybody looked.
        emptied = known is None and bool(self.generations) and not place.size and 0 < place.file.birth < place.modified
        if known is not None:
            known.unexamined = False
        if known is not None and known.is_rewritten(examined.verdict):
            yield from self._seek_what_it_held(known)
            return
        match self._verdict(examined):
            case Empty():
                yield from self._found_empty(place, emptied=emptied)
            case Unreadable(reason):
                yield from self._unreadable(place)
                yield Refuse(place, reason)
                yield from self._supersede()
            case Refused(reason):
                yield Refuse(place, reason)
                if known is not None and known.copy_of == NOTHING:
                    yield from self._drop(known)
                yield from self._supersede()
            case Plain() as plain if known is not None and known.is_apart and known.is_as_compared(plain):
                yield Keep(known)  # what it is a copy of is read, or sought, wherever that is by now
            case Plain() as plain:
                since = self._unseen_before(place, plain.witness, known, was_empty=was_empty, emptied=emptied)
                yield from self._begin_behind(since, place, plain, known)
            case Old():
                yield from self._leave(place)
            case Copy() as copy:
                yield from self._copied(place, copy, examined.asked or self.path)
        if self.new_since and self.generations and not self._unsettled:
            yield from self._seek_unseen()

    def _found_empty(self, place: Place, *, emptied: bool) -> Iterator[Command]:
        """`emptied`: something was in it before."""
        yield from self._empty(place._replace(size=0))  # whatever it was when it was seen
        yield Await(place)
        yield from self._supersede()
        if place.size and not place.codec:
            yield from self._seek_content(place.modified - 1)
        elif emptied:
            yield from self._seek_content(place.file.birth)

    def _answered(self, file: FileId) -> Iterator[Command]:
        self._released.pop(file, None)
        if self._waiting and not self._released:
            yield from self._release()

    def _begin_behind(
        self, since: int | None, place: Place, plain: Plain, known: Generation | None
    ) -> Iterator[Command]:
        """Read a file that was examined, after what was in it since then (ns), unseen."""
        if since is None:
            yield from self._begin(place, plain, known, hold=False)
            return
        self._look_back(since)
        yield from self._begin(place, plain, known, hold=True)
        yield from self._seek_unseen()

    def _begin(self, place: Place, plain: Plain, known: Generation | None, *, hold: bool) -> Iterator[Command]:
        """Read a file that was examined. `hold`: once what may have been in it before was searched for."""
        start, witness = plain.start, plain.witness
        if witness is not None:
            place = place._replace(size=witness.at)  # as it was examined, whatever it was when it was seen
        if known is not None:
            if known.phase is not Phase.DONE:
                return  # met by another name meanwhile
            later = known.copy_of == NOTHING and self._next(known) is not self._follower(place.file)
            if known.copy_of is not None and not later:
                # As modified as when it was first seen: others may have come and gone since.
                known.size = place.size
                known.known = known.known._replace(size=0 if place.codec else place.size)
                if not (plain.goes_on and self._was_copied(known, place)):
                    # It was empty, or only began as another file does: with the same header, perhaps.
                    known.position = start
                    known.known = known.known._replace(witness=witness, begun=bool(place.codec))
                yield self._read_or_hold(known, place, hold=hold)
                yield from self._supersede()
                return
            if not later and (place.codec or place.size >= known.position):
                yield from self._meet_again(known, place)  # asked for before it was read
                return
            yield from self._drop(known)  # it begins after what came meanwhile, but for what stands at the path
        follower = self._begun_after(place) if known is None else self._follower(place.file)
        generation = self._add(place, start, witness, Phase.READING, before=follower)
        generation.known = generation.known._replace(begun=bool(place.codec))
        if known is not None and self.asked == known.source:
            self.asked = generation.source
            yield Seek(generation)
        yield self._read_or_hold(generation, place, hold=hold)
        yield from self._supersede()

    def _read_or_hold(self, generation: Generation, place: Place, *, hold: bool) -> Read | Keep:
        if not (hold or self._overtaken or self._is_older_awaited(generation)):
            return self._read(generation)
        generation.copy_of, generation.known = None, generation.known._replace(done=False, copy_of="")
        self._hold(generation, place)
        return Keep(generation)

    def _empty(self, place: Place) -> Iterator[Command]:
        empty = self.of(place.file)
        if empty is None:
            empty = self._add(place, 0, None, Phase.DONE, before=self._follower(place.file))
        elif empty.phase is not Phase.DONE or empty.copy_of in {None, NOTHING}:
            return
        else:  # it was a copy, and was truncated
            empty.position = empty.size = 0
            empty.known = empty.known._replace(witness=None, size=0, done=False, copy_of="")
        empty.copy_of = NOTHING
        yield Keep(empty)

    def _leave(self, place: Place) -> Iterator[Command]:
        """It counts as read to its end. If it is written to later, it is read."""
        left = self.of(place.file) or self._add(place, 0, None, Phase.DONE)
        left.copy_of = None
        left.known = left.known._replace(done=True, read_size=place.size, read_modified=place.modified)
        yield Keep(left)

    def _unreadable(self, place: Place) -> Iterator[Command]:
        """Its content is not known, but the file is: it is read once it can be, wherever it was rotated to."""
        if self.of(place.file) is None:
            yield from self._empty(place._replace(size=0))
        unread = self.of(place.file)
        if unread is not None and unread.copy_of == NOTHING:
            unread.size = place.size
            yield Await(place)

    def _drop(self, generation: Generation, after: str = "") -> Iterator[Command]:
        if generation is self.generations[-1]:
            self.since = max(self.since, generation.known.modified)
        self.generations.remove(generation)
        self._missed = self._missed and bool(self.generations)
        yield Forget(generation, after)

    # Copies.

    def _copied(self, place: Place, copy: Copy, asked: str) -> Iterator[Command]:
        original = self.named(copy.of)
        if original is None:
            yield Look(place.path, asked)  # its end was told meanwhile
        elif original.is_apart:
            yield from self._pack(original, place, gone=not original.links)
        elif original.phase is Phase.DONE and place.codec and original.known.done and not original.waits:
            # Compressed after it was read. Lines that came too late for it may be here.
            compressed = self._add(place, original.position, original.known.witness, Phase.DONE)
            yield self._read(compressed)
            if not original.links:  # another one with the same header is no second one of it
                yield from self._drop(original, compressed.source)
        elif original.phase is Phase.DONE and not copy.sure:
            back = place.codec or original.known.file.resembles(place.file)
            if not (back or original.sought_again):
                self._copies[place.file] = place, asked  # that is not where it was; but it may have been compressed
                original.phase, original.sought_again = Phase.SOUGHT, True
                yield Seek(original)
                return
            yield from self._replace(original, place, DELETED)
            yield from self._supersede()
        elif not copy.sure or self._unresolved(original):
            self._copies[place.file] = place, asked
            if original.phase is Phase.STORED and not self._unresolved(original):
                original.phase = Phase.SOUGHT  # it was over in the last run already: else nobody looks where it is
                yield Seek(original)
        elif original.copy_of == NOTHING:
            yield Look(original.known.path)  # it was empty: nothing of it was read yet
            yield Look(place.path, asked)
        else:
            yield Repeat(place, copy, asked)

    def _pack(self, copy: Generation, place: Place, *, gone: bool) -> Iterator[Command]:
        """A copy that was made apart was compressed to this file, which is not read either. `gone`: the copy is."""
        packed = self._add(place, copy.position, copy.known.witness, Phase.DONE)
        packed.copy_of, packed.like = copy.copy_of, copy.like
        packed.known = packed.known._replace(size=copy.known.size, done=True, copy_of=copy.known.copy_of, apart=True)
        yield Keep(packed)
        if gone:
            yield from self._drop(copy, packed.source)

    def _repeated(self, fact: Repeated) -> Iterator[Command]:
        place, copy = fact.place, fact.copy
        repeated = self.of(place.file)
        if repeated is None:
            repeated = self._add(place, copy.length, copy.witness, Phase.DONE)
        if repeated.phase is Phase.DONE:
            repeated.position, repeated.copy_of, repeated.compared = copy.length, copy.of, copy.modified
            known = repeated.known._replace(witness=copy.witness, size=copy.length, done=True, copy_of=copy.of)
            repeated.known = known._replace(apart=fact.apart)
            repeated.like, repeated.moved = fact.log, copy.modified == copy.original_modified
            yield Keep(repeated)
            if not fact.apart:
                yield Await(place)

    def _confirm_copies(self, gone: Gone) -> Iterator[Command]:
        for each in self.generations:
            if each.copy_of != gone.source:
                continue
            alike = not gone.after and each.may_only_begin_as(gone)
            if alike and (each.position < gone.read or not (gone.buried or each.moved)):
                yield self._read_whole(each)
            elif not (alike and gone.buried):
                each.copy_of = gone.after or None
                each.known = each.known._replace(copy_of=gone.after)
                yield Keep(each)

    def _seek_what_it_held(self, repeated: Generation) -> Iterator[Command]:
        """So it was a log of its own, which was truncated. What it had is read in a copy, or lost."""
        repeated.position, repeated.copy_of, repeated.phase = 0, None, Phase.SOUGHT
        repeated.known = repeated.known._replace(done=False, copy_of="")
        yield Keep(repeated)
        yield Seek(repeated)

    def _alone(self, file: FileId) -> Iterator[Command]:
        repeated = self.of(file)
        if repeated is not None and repeated.repeats:
            yield self._read_whole(repeated)

    def _read_whole(self, repeated: Generation) -> Read | Keep:
        """It is no copy."""
        repeated.position, repeated.copy_of = 0, None
        return self._read(repeated)

    # What is missing.

    def _listed(self) -> Iterator[Command]:
        for generation in self.generations:
            if generation.phase is Phase.STORED and self._unresolved(generation):
                generation.phase = Phase.SOUGHT
                if generation is self.generations[-1]:
                    self._missed, self.asked = False, generation.source
                yield Seek(generation)
        if self._missed and self.generations[-1].phase is Phase.SOUGHT:  # its search is yet to begin
            self._missed, self.asked = False, self.generations[-1].source
        elif self._missed:
            yield from self._seek_unseen()
        yield from self._release()

    def _seek_content(self, since: int) -> Iterator[Command]:
        """What a file held when it was seen is not in it: a copy, modified since then, may have it."""
        self._overtaken = True
        self._look_back(since)
        yield from self._seek_unseen()

    def _seek_unseen(self) -> Iterator[Command]:
        """Files came and went unseen, or may have: they are found with the newest generation."""
        newest = self.generations[-1]
        self._missed = newest.phase in {Phase.SOUGHT, Phase.STORED}  # then it is sought again, or later, anyway
        if self._missed:
            return
        self.asked = newest.source
        for generation in self.generations:
            if generation.copy_of == NOTHING and generation.size and not generation.known.codec:
                self._look_back(generation.known.modified - 1)  # it could not be read; compressed since, perhaps
            lost_sight = generation is newest or generation.copy_of == NOTHING or generation.waits
            if lost_sight and generation.phase is not Phase.SOUGHT:
                yield Seek(generation)

    def _sought(self, found: Sought) -> Iterator[Command]:
        generation = self.named(found.source)
        asked = found.source == self.asked
        if asked:
            self.asked = ""
            self._missed = bool(self.generations) and (self._missed or generation is None or found.unavailable)
            self._overtaken = self._missed
        if generation is None:
            return
        generation.away = found.unavailable
        since = generation.known.modified
        met = [place for place in found.between if self.of(place.file) is None]
        unheard_of = any(place.file not in self._waiting for place in met)
        self._waiting |= {place.file: place for place in met}  # it may have been seen before, elsewhere
        held = generation.phase is Phase.HELD and generation.copy_of is None
        if (held or (found.at is None and generation.waits)) and self._is_elsewhere(found):
            generation.phase = Phase.SOUGHT
            self._waiting.pop(generation.known.file, None)
        if generation.phase is Phase.SOUGHT:
            yield from self._found(generation, found)
        elif found.at is not None:
            begun = generation.phase in {Phase.READING, Phase.HELD}
            another = begun and not found.intact  # content is in it now, of another length
            size = generation.known.size if another else found.at.size
            yield from self._meet_again(generation, found.at._replace(size=size))
        elif generation.copy_of == NOTHING and not found.unavailable:
            if self.stands(generation.known.file):
                self._here = None
            if not found.between:  # these may be renamed before they are examined: then a search begins with it
                yield from self._drop(generation)
        rest = found.rest
        if generation.phase is Phase.READING and rest is not None and self.of(rest.file) is None:
            unheard_of = unheard_of or rest.file not in self._waiting
            self._waiting[rest.file] = rest  # it does not have the rest of that one, but begins alike
        yield from self._release()
        if unheard_of and self.generations and self._searches < _SEARCHES_MOST:
            # Names shift while they are looked at, and one may have slipped through.
            self._searches += 1
            self._look_back(since)
            self.asked = self.generations[-1].source
            yield Seek(self.generations[-1])
        elif asked and not self._missed:
            self._searches = self.unseen_since = self.new_since = 0
        else:
            yield from self._seek_what_waited(found)

    def _seek_what_waited(self, found: Sought) -> Iterator[Command]:
        """Files were missed while another search was under way."""
        waited = self._missed and not (self.asked or self._has_unresolved)
        if waited and not found.unavailable:
            yield from self._seek_unseen()

    def _copied_early(self, original: Generation, place: Place, witness: Witness) -> Iterator[Command]:
        """A copy has nothing that was not read. It may have been met when it was in the making."""
        copy = self.of(place.file)
        if copy is None:
            copy = self._add(place, witness.at, witness, Phase.DONE, instead_of=original)
        elif copy.copy_of != original.source:
            return
        self._waiting.pop(place.file, None)
        self._copies.pop(place.file, None)
        copy.position, copy.size, copy.copy_of = witness.at, place.size, None
        read_size, read_modified = (place.size, place.modified) if place.codec else (0, 0)
        known = copy.known._replace(path=place.path, witness=witness, size=witness.at, done=True, copy_of="")
        copy.known = known._replace(read_size=read_size, read_modified=read_modified)
        yield Keep(copy)

    def _found(self, generation: Generation, found: Sought) -> Iterator[Command]:
        if found.unavailable or (self._missed and found.at is None and found.rest is None):
            generation.phase = Phase.STORED  # what was missed since the search began may say where it went
            return
        nowhere = found.rest is None and not (found.intact or found.copies)
        if self._copies and nowhere and not generation.sought_again:
            generation.sought_again = True  # one of them has its content, and was renamed during the search perhaps
            yield Seek(generation)
            return
        seen = generation.size
        if found.at is not None:
            known = generation.known._replace(path=found.at.path, file=found.at.file)
            self.generations.know(generation, known)
            generation.size = found.at.size
        over = generation.known.done and generation.copy_of is None
        if found.at is not None and found.intact and over and generation.was_read_whole(found.at):
            generation.phase = Phase.DONE
            generation.known = generation.known._replace(modified=found.at.modified)
            yield Keep(generation)
        elif found.at is not None and found.intact:
            yield from self._resume(generation, found.at)
        else:
            yield from self._found_elsewhere(generation, found)
            if found.at is not None and seen > found.at.size:  # of that content or of one that came after it
                yield from self._seek_content(generation.known.modified)

    def _found_elsewhere(self, generation: Generation, found: Sought) -> Iterator[Command]:
        """Its file holds something else by now, or is gone."""
        rest, copies = found.rest, found.copies
        if copies and copies[-1][1].at > generation.position:  # what is not acknowledged is in the longest one
            copies, (rest, witness) = copies[:-1], copies[-1]
            generation.known = generation.known._replace(witness=witness)
        for place, witness in copies:
            yield from self._copied_early(generation, place, witness)
        if generation.known.witness is None and found.between:
            generation.known = generation.known._replace(size=0)  # nobody can tell that it is none of these
        yield from self._replace(generation, rest, TRUNCATED if found.at is not None else DELETED)
        if generation.unread_since > len(found.between) and not self.matches(f"{self.path}.1"):
            yield Untold(generation)  # where a glob takes copies, they are read, and not among these
        if found.at is not None:
            yield from self._begin_anew(found.at)

    def _begin_anew(self, place: Place) -> Iterator[Command]:
        """The file was truncated: it stays known, whatever it is called by now, and what is in it comes next."""
        yield from self._empty(place)
        anew = self.of(place.file)
        if anew is not None and anew.phase is Phase.DONE:
            self._hold(anew, place)
        else:
            yield Examine(place)

    def _replace(self, generation: Generation, rest: Place | None, reason: str) -> Iterator[Command]:
        """Go on in the file that has the content now; or say that nothing has."""
        position, known = generation.position, generation.known
        if rest is None:
            yield from self._say_gone(generation, reason)
            if reason == DELETED and self._may_come_back(generation):
                yield from self._bury(generation)
                return
        elif generation.is_apart and self.of(rest.file) is None:
            self._waiting.pop(rest.file, None)
            yield from self._pack(generation, rest, gone=True)
            return
        elif generation.copy_of:
            yield from self._drop(generation)
            yield Examine(rest)  # it was a copy in the making: there may be more of it now
            return
        else:
            after = self.of(rest.file)
            if after is None or (after.copy_of is None and after.is_missing):
                # That file was overwritten: what it held is looked for, too, and this is in it now.
                after = self._add(rest, position, known.witness, Phase.DONE, instead_of=generation)
            self._copies.pop(rest.file, None)
            yield from self._say_not_copied(generation, rest, reason)
            size = known.size if rest.codec else rest.size  # of its text
            found = after.known._replace(path=rest.path, file=rest.file, codec=rest.codec, witness=known.witness)
            self.generations.know(after, found._replace(size=size, done=True, copy_of=""))
            after.size = rest.size
            if after.phase in {Phase.DONE, Phase.STORED} or after.copy_of is not None:  # that may not be looked at yet
                self._waiting.pop(rest.file, None)
                after.phase, after.copy_of = Phase.DONE, None
                if rest.codec or rest.size > position or self.stands(rest.file):
                    after.position, generation.phase = position, Phase.DONE
                    yield from self._go_on(after, rest)
                    if after.phase is Phase.HELD:  # stored before that which it replaces is forgotten
                        after.known = after.known._replace(done=False)
                        yield Keep(after)
                else:
                    after.position = rest.size
                    yield Keep(after)
            yield from self._drop(generation, after.source)
            return
        yield from self._drop(generation)

    def _say_not_copied(self, generation: Generation, rest: Place, reason: str) -> Iterator[Command]:
        """Lines that were seen, and not read, came after its content was copied to `rest`. That is complete by now."""
        known, end = generation.known, max(rest.size, generation.position)
        if known.size > end and not (rest.codec or known.done or self.is_left_out(known.path)):
            yield Lose(Loss(known.path, reason, end, known.size - end, exact=False))

    def _say_gone(self, generation: Generation, reason: str) -> Iterator[Command]:
        """Its content is nowhere. What was not read of a log that is left out is no loss."""
        position, known = generation.position, generation.known
        if self.is_left_out(known.path):
            return
        if known.size > position and not known.done:
            yield Lose(Loss(known.path, reason, position, known.size - position, exact=False))
        elif generation.grown and reason == DELETED:
            yield Lose(Loss(known.path, reason, position, generation.grown, exact=False))
        elif generation.untold or generation.orphaned:
            yield Untold(generation)

    def _release(self) -> Iterator[Command]:
        if self._unsettled:
            return
        changed, self._changed = self._changed, {}
        for path in changed.values():
            yield Look(path)
        if not (self._waiting or self._copies):
            return
        held = {each.known.file for each in self.generations if each.phase is Phase.HELD}
        new = {file: place for file, place in self._waiting.items() if file not in held}
        unknown = min((*new.values(), *self._released.values()), key=self._age, default=None)
        yield from self._let_go(None if unknown is None else self._begun_after(unknown))
        self._waiting = {file: place for file, place in self._waiting.items() if file not in new}
        copies: dict[FileId, tuple[Place, str]] = {}
        if not self._has_unresolved:
            copies, self._copies = self._copies, {}
        self._released |= new
        for place in sorted(new.values(), key=self._age):
            yield Examine(place)
        for place, asked in copies.values():  # one of this log is found whatever it is called by now
            yield Examine(place) if asked == self.path else Look(place.path, asked)

    # What ended.

    def _ended(self, generation: Generation | None, end: End, known: Known) -> Iterator[Command]:
        if generation is None:
            return
        read = end.position > generation.position or (end.seen and end.kind == TRUNCATED)
        generation.untold = generation.untold and not read
        generation.orphaned, generation.unread_since = end.kind == GONE, end.unread_since
        generation.position = end.position
        size = max(known.size, end.size, generation.size if end.kind == GONE and not known.codec else 0)
        path = self.newest_path(generation, known)
        if generation.known.path != path:
            yield Look(generation.known.path)  # either may be the newer one
        self.generations.know(generation, known._replace(log=self.path, path=path, size=size))
        match end.kind:
            case "truncated" | "gone" | "deleted" if end.kind != DELETED or self._may_go_on(end):
                generation.phase, generation.cut = Phase.SOUGHT, end.kind != DELETED
                if end.kind == DELETED:
                    generation.links, self._arrived = 0, False
                yield from self._keep_unread(generation)
                yield Seek(generation)
            case "deleted":
                if end.size > end.position:
                    yield Lose(Loss(end.path, DELETED, end.position, end.size - end.position, exact=True))
                    yield from self._drop(generation)
                else:
                    yield from self._bury(generation)
            case "damaged":
                length = max(0, end.size - end.position)
                yield Lose(Loss(end.path, DAMAGED, end.position, length, exact=False, why=end.why))
                yield from self._finish(generation)
            case "concluded":
                if not known.codec and self._here is not None and not self._left(known.file):
                    yield self._read(generation)  # it is back at its path
                else:
                    yield from self._finish(generation, size if known.codec else 0)
            case _:
                generation.phase = Phase.DONE
                yield from self._keep_unread(generation)
        yield from self._release()

    def _seek_replaced(self) -> Iterator[Command]:
        self._arrived = True
        replaced = (each for each in reversed(self.generations) if not each.links and each.known.path == self.path)
        last = next(replaced, None)
        if last is not None and not last.sought_again:
            last.phase, last.sought_again = Phase.SOUGHT, True
            yield Seek(last)

    def _keep_unread(self, generation: Generation) -> Iterator[Command]:
        """What is missing may be said by the next run only."""
        if generation.known.size > generation.position:
            yield Keep(generation)

    def _finish(self, generation: Generation, size: int = 0) -> Iterator[Command]:
        """`size`: of a compressed file, the bytes of its text as far as known. It may be made before the last came."""
        known, position = generation.known, generation.position
        if size > position:
            yield Lose(Loss(known.path, TRUNCATED, position, size - position, exact=False))
        generation.phase, generation.grown = Phase.DONE, 0
        generation.known = generation.known._replace(done=True)
        yield Keep(generation)

    def _deleted(self, source: str) -> Iterator[Command]:
        generation = self.named(source)
        if generation is None or generation.phase is not Phase.DONE or generation.links > 1:
            return
        if generation.copy_of == NOTHING:
            yield from self._seek_unseen()  # it was written to and renamed, perhaps
        elif generation.links:
            yield from self._bury(generation)
        else:
            yield from self._drop(generation)

    def _bury(self, generation: Generation) -> Iterator[Command]:
        generation.phase, generation.links = Phase.DONE, 0
        generation.known = generation.known._replace(done=True)
        yield Bury(generation)
