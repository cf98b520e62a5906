"""Response models of the API. They use no web framework, so that the client can import them.

Times are seconds since the epoch (UTC) or null; durations are seconds; shares of a GPU are whole thousandths
(``permille``); memory is MiB.
"""
