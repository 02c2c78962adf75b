//! Both halves of the service protocol, and the client of a domain's control socket.
