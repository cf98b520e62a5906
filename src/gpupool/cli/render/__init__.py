"""What people see: plain lines from the API's JSON. Every function here is pure; colours and widths are given."""
