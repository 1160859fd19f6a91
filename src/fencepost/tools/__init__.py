"""What an agent can do: typed functions and declared schemas as tools, and the boundary's rules."""
