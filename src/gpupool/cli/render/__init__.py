"""Format the API's JSON as lines for the terminal. All functions are pure: colours and widths are arguments."""
