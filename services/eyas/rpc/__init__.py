"""How the services of eyas speak gRPC: channels, servers, authentication, and the boundary for gRPC's errors."""
