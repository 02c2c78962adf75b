//! libtombolo_preload.so: name look-ups of dynamic programs over a channel of their own.
