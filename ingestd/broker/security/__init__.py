"""Who may use the broker: TLS, users, and the server side of SASL."""
