"""Transactions: what is known of each transactional id, in `__transaction_state`, and the markers that end them."""
