//! Native entrances of the directory service: the DNS stub and the resolver socket.
