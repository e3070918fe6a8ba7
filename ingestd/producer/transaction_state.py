"""Transaction state: the states of a transactional producer, and the steps between them. Only this changes them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from ingestd.errors import WrongTransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingestd.errors import IngestdError

__all__ = ["TransactionState", "TransactionStates"]


class TransactionState(Enum):
    """The states of Java's TransactionManager. The properties are sarama's status flags."""

    UNINITIALIZED = "uninitialized"
    """No producer id yet."""
    INITIALIZING = "initializing"
    """A producer id is being asked for, or, after some aborts, the next epoch."""
    READY = "ready"
    """No transaction is open."""
    IN_TRANSACTION = "in transaction"
    """Open: records are accepted."""
    COMMITTING = "committing"
    """Waits for acknowledgements, then for the answer to the commit, or it is not known whether it was committed."""
    ABORTING = "aborting"
    """Waits for what is in flight, then for the answer to the abort."""
    ABORTABLE_ERROR = "abortable error"
    """A part of the transaction failed. It can only be aborted. Then the producer goes on."""
    FATAL_ERROR = "fatal error"
    """The producer can only be closed."""

    @property
    def ending(self) -> bool:
        """Whether the transaction is being committed or aborted."""
        return self in (TransactionState.COMMITTING, TransactionState.ABORTING)

    @property
    def in_error(self) -> bool:
        """Whether something failed: for good (`FATAL_ERROR`), or until the abort (`ABORTABLE_ERROR`)."""
        return self in (TransactionState.ABORTABLE_ERROR, TransactionState.FATAL_ERROR)

    @property
    def open(self) -> bool:
        """Whether there is a transaction that has not ended."""
        return self in _OPEN


_S = TransactionState
_OPEN: Final = frozenset({_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR})

_FOLLOWS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    # Back to UNINITIALIZED: there was no answer in time, so it may be tried again.
    _S.INITIALIZING: frozenset({_S.READY, _S.UNINITIALIZED, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.INITIALIZING, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    # To ABORTABLE_ERROR only as long as no commit was sent.
    _S.COMMITTING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}


class TransactionStates:
    """The current state, and the error that led to it.

    Invariants
        Only steps of the table are taken. Any other is a defect of this package, and fails an assertion.
        `error` is set in the two error states, and nowhere else.
        `changed` is called after every step.
    """

    def __init__(self, transactional_id: str, changed: Callable[[], None]) -> None:
        self._transactional_id = transactional_id
        self._changed = changed
        self.current = TransactionState.UNINITIALIZED
        self.error: IngestdError | None = None

    def enter(self, state: TransactionState, error: IngestdError | None = None) -> None:
        """Take a step; `error` goes with the error states."""
        assert state in _FOLLOWS[self.current], f"{self.current} -> {state}"
        assert (error is not None) == state.in_error
        self.current = state
        self.error = error
        self._changed()

    def require(self, doing: str, *allowed: TransactionState) -> None:
        """Raise if the state is not one of `allowed`: the fatal error if there is one, else `WrongTransactionState`."""
        if self.current in allowed:
            return
        if self.current is TransactionState.FATAL_ERROR:
            assert self.error is not None
            raise self.error.with_traceback(None)
        expected = " or ".join(state.value for state in allowed)
        because = f" ({self.error})" if self.error is not None else ""
        raise WrongTransactionState(
            f"{doing}: the producer {self._transactional_id!r} is in state {self.current.value!r}{because}; "
            f"expected {expected!r}"
        )
