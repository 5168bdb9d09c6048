"""Connections to clusters over the native protocol: settings, TLS, raw results, request metrics."""
