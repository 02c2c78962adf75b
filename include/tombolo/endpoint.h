/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Endpoints: messages between the programs of a distributed container, which never learn where the others are: libtombolo.so. What
 * tombolo/channel.h says of handles, errors, forks and signals holds here, too; docs/endpoints.md shows it step by step.
 *
 *     #include <tombolo/endpoint.h>                 cc program.c -ltombolo
 *
 *     tombolo_handle planner = tombolo_endpoint_bind("planner", NULL);
 *     struct tombolo_message message;
 *     char bytes[4096];
 *     ssize_t length;
 *     while ((length = tombolo_endpoint_receive(planner, TOMBOLO_ANYBODY, bytes, sizeof bytes, &message, TOMBOLO_FOREVER)) >= 0)
 *         if (message.kind == TOMBOLO_REQUEST)
 *             tombolo_endpoint_reply(planner, message.request, message.tag, bytes, (size_t)length);
 *
 * and in another domain
 *
 *     tombolo_handle me = tombolo_endpoint_bind(NULL, NULL);
 *     tombolo_address planner = tombolo_endpoint_wait(me, "planner", TOMBOLO_FOREVER);
 *     length = tombolo_endpoint_call(me, planner, 0, "where to?", 9, bytes, sizeof bytes, NULL, TOMBOLO_FOREVER);
 *
 * ERRORS. A call that fails returns -1 (those that give an address: TOMBOLO_NOBODY) with errno set, and tombolo_error_text() says in a
 * sentence what went wrong, where, and what to do. Beside those that channel.h lists for every call (EBADF, EINVAL, EFAULT, EBUSY,
 * ENOTRECOVERABLE) these, which mean the same in each call that may give them:
 *     ENOTCONN     the endpoint is not bound, or this one was not introduced to it: tombolo_endpoint_find() or _wait()
 *     EINVAL       it is this endpoint itself, or an argument is out of its bounds
 *     ESTALE       wrong generation: what had this address has ended, and another has its place; or this endpoint is that of
 *                  the parent of this process
 *     EPIPE        it is dead, or has ended: its program, the endpoint, or what its domain had
 *     EREMCHG      it has moved: find it again
 *     EPERM        refused: the topology file does not allow this
 *     EDEADLK      it waits, over others perhaps, for this very caller: nothing would ever move
 *     ETIMEDOUT    the time is over; what was sent was withdrawn, and will not be received
 *     EAGAIN       the same, of a call that may not wait at all
 *     ETIME        the time is over; the request was received, and its reply will be dropped
 *     ECOMM        the time is over; the peer is on another node, which does not say whether it was received, or a buffer there written
 *     EMSGSIZE     too long for this pair, for the reply that is taken, or for the buffer
 *     EPROTO       it broke the rules of the shared memory, and was cut off
 *     ESHUTDOWN    this endpoint has ended: the topology file does not place it here any more
 *     ECONNREFUSED the node's daemon is not there: channels to those whom this endpoint has been introduced to go on
 *
 * WAITING. Each call that may wait takes a time-out in ns: 0 is not to wait, TOMBOLO_FOREVER. A signal handler runs while a call
 * waits, and the call goes on, except with TOMBOLO_INTERRUPTIBLE.
 *
 * THREADS. An endpoint makes one call at a time: a second thread gets EBUSY at once. Any thread may close the handle: who waits on it
 * returns (EBADF). For several calls at a time take several endpoints; those without a name cost little.
 *
 * FORKS. An endpoint is used by the process that made it; exec() closes everything.
 *
 * OTHER ENDPOINTS are not trusted by this library: whatever they do, calls return what is right or fail, and none of them can keep
 * another one from being received.
 */
#ifndef TOMBOLO_ENDPOINT_H
#define TOMBOLO_ENDPOINT_H

#include <tombolo/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where an endpoint is, in its distributed container: its place (the low half), and which of those that had the place (the high half).
 * It names no machine. People and tombolo_endpoint_find() know it as "PLACE.GENERATION". */
typedef uint64_t tombolo_address;

#define TOMBOLO_NOBODY ((tombolo_address)0)
#define TOMBOLO_ANYBODY ((tombolo_address)0)
#define TOMBOLO_PLACE(address) ((uint32_t)(address))
#define TOMBOLO_GENERATION(address) ((uint32_t)((address) >> 32))

/* What tombolo_message.kind says. */
#define TOMBOLO_MESSAGE 1u /* nobody waits for a reply */
#define TOMBOLO_REQUEST 2u /* somebody does: tombolo_endpoint_reply() or _relay() */
#define TOMBOLO_NOTICES 3u /* bits, without bytes */
#define TOMBOLO_REPLY 4u   /* what tombolo_endpoint_call() brought */

/* What came, beside its bytes. */
struct tombolo_message {
	uint32_t kind;
	uint32_t tag;           /* what it means: the sender's word */
	tombolo_address source; /* who it is from; of a request that was passed on, who asked first */
	uint64_t request;       /* of a request: its number, for the reply */
	uint64_t notices;       /* of notices: the bits */
	uint32_t length;        /* bytes, also those that did not fit (EMSGSIZE) */
	uint32_t takes;         /* of a request: most bytes of its reply */
	/* Of a request that was passed on: by whom, who is the one that says who asked, and may relay. TOMBOLO_NOBODY: the source has asked itself. */
	tombolo_address relayed_by;
	uint64_t reserved[2];   /* zero */
};

/* Bits of tombolo_options.flags, for tombolo_endpoint_bind() and _pair() alone; of the others, TOMBOLO_NO_SPIN is for endpoints, too. */
#define TOMBOLO_INTERRUPTIBLE 128u /* when a signal handler has run, calls that wait return EINTR. The same call with the same arguments goes on
                                      where it was; another one that may wait gives it up, as tombolo_endpoint_give_up() does */

/* Binds an endpoint: at the daemon of the domain that the program runs in, which is where the topology file places the name; NULL
 * binds one without a name. `options` may be NULL; of it count size, flags, batch_bytes (what tombolo_endpoint_send_buffered() holds
 * back; 0: nothing) and wait_ns (how long to wait for the daemon, and for a name that somebody has; 0: not at all).
 * EADDRINUSE: another program has bound it; ENOENT: there is no such endpoint; EPERM: it is not this domain's; EUSERS: a limit of the
 * distributed container; ECONNREFUSED: no daemon; ETIMEDOUT. */
tombolo_handle tombolo_endpoint_bind(const char *name, const struct tombolo_options *options);

/* Makes two endpoints that know each other, and nobody else: for threads, and to try things without a daemon. They may do everything
 * to each other but grant buffers. Returns 0. */
int tombolo_endpoint_pair(const struct tombolo_options *options, tombolo_handle ends[2]);

/* Ends an endpoint, as tombolo_close() does: its name is free, and who waits for it is told (EPIPE). What was sent and not received is
 * received nevertheless. Buffers of it are freed. */
int tombolo_endpoint_unbind(tombolo_handle endpoint);

/* Where it is. TOMBOLO_NOBODY: failed. */
tombolo_address tombolo_endpoint_address(tombolo_handle endpoint);

/* Its name, "" if it has none. Writes at most `size` bytes with a NUL and returns the length of the whole text, as snprintf() does. */
ssize_t tombolo_endpoint_name(tombolo_handle endpoint, char *text, size_t size);

/* The address of whoever is `whom`: a name, or an address as people write it ("7.3"). Introduces both, if they do not know each other.
 * The time-out is for the daemon's answer; 0 is ten seconds, for it always answers.
 * ENOTCONN: the name is known, and nobody has bound it; ENOENT: there is no such name here; ESTALE: that generation has ended; EPERM;
 * EINVAL: it is this one itself; EUSERS: a limit; ETIMEDOUT: the daemon is away. */
tombolo_address tombolo_endpoint_find(tombolo_handle endpoint, const char *whom, int64_t timeout_ns);

/* The same, and waits until it is bound: also over the death of a daemon. ETIMEDOUT. A time-out of 0 makes it tombolo_endpoint_find(). */
tombolo_address tombolo_endpoint_wait(tombolo_handle endpoint, const char *whom, int64_t timeout_ns);

/* Sends a message and waits until it is received: a rendezvous. Returns 0; after a failure it has not been received, and will not be.
 * ETIMEDOUT, EAGAIN, EDEADLK, EPIPE, EPERM, EMSGSIZE. */
int tombolo_endpoint_send(tombolo_handle endpoint, tombolo_address to, uint32_t tag, const void *bytes, size_t length,
                          int64_t timeout_ns);

/* Sends a message and waits no longer than until there is room for it. Small ones are held back until they are batch_bytes together;
 * each call that waits shows them first, and so does tombolo_endpoint_flush(). Messages to one endpoint arrive in order. */
int tombolo_endpoint_send_buffered(tombolo_handle endpoint, tombolo_address to, uint32_t tag, const void *bytes, size_t length,
                                   int64_t timeout_ns);
int tombolo_endpoint_flush(tombolo_handle endpoint);

/* Sends a request and waits for its reply, of at most `size` bytes: returns how many. `reply` says who has answered, and may be NULL.
 * ETIMEDOUT, EAGAIN: it was not received; ETIME: it was; ECOMM: nobody knows; EDEADLK; EPIPE; EPERM; EMSGSIZE; EHOSTUNREACH: it was passed on to an endpoint
 * that this one has not been introduced to. */
ssize_t tombolo_endpoint_call(tombolo_handle endpoint, tombolo_address to, uint32_t tag, const void *bytes, size_t length,
                              void *buffer, size_t size, struct tombolo_message *reply, int64_t timeout_ns);

/* Gives up a call that has returned EINTR: what it sent is withdrawn, unless it has been received. Returns 1 if it has, 0 if not, or if there is
 * no such call. */
int tombolo_endpoint_give_up(tombolo_handle endpoint);

/* Receives from anybody (TOMBOLO_ANYBODY), each in turn, or from one. Returns the bytes. EMSGSIZE: it has more bytes than the buffer
 * (message->length says how many); it stays, and is received first next time. From one: EPIPE and others say that nothing will come. */
ssize_t tombolo_endpoint_receive(tombolo_handle endpoint, tombolo_address from, void *buffer, size_t size,
                                 struct tombolo_message *message, int64_t timeout_ns);

/* Answers a request. Waits for nobody but backups of this endpoint. Of two requests of one endpoint only the newer can be answered. EMSGSIZE: longer than it takes, and it
 * still waits; ECANCELED: nobody waits for it any more; EPIPE; ENOBUFS: the other one leaves no room. Returns 0. */
int tombolo_endpoint_reply(tombolo_handle endpoint, uint64_t request, uint32_t tag, const void *bytes, size_t length);

/* BACKUPS. An endpoint may have backups: programs in domains that its `backups` in the topology file names, which take its place when its program dies.
 * What they need for that, the program hands over with its replies: a state, of at most 256 KiB, which replaces the one before. A reply is released
 * only after every backup has taken it. */

/* Becomes a backup of an endpoint. Returns a handle that is good for tombolo_endpoint_take_over(), _promote(), _state() and tombolo_close(). `options` are
 * those of the endpoint that it will be. EPERM: the file does not name this domain; ENOENT; EUSERS: there are four; EOPNOTSUPP: it is bound on another node. */
tombolo_handle tombolo_endpoint_bind_backup(const char *name, const struct tombolo_options *options);

/* Waits until the backup has its primary's place: returns the endpoint, another handle. A backup is one only while its program is in this call, which it should be all the
 * time. EAGAIN, ETIMEDOUT: the primary lives; EALREADY: it has taken over before; ESHUTDOWN: the file does not name this domain any more. */
tombolo_handle tombolo_endpoint_take_over(tombolo_handle backup, int64_t timeout_ns);

/* Has the next tombolo_endpoint_take_over() supersede a primary that lives: no reply of that one counts any more. Returns 0. */
int tombolo_endpoint_promote(tombolo_handle backup);

/* As tombolo_endpoint_reply(), and hands over what a backup has to know to go on from here: it has both the reply and the state, or neither. EMSGSIZE: also a state
 * that is too long. */
int tombolo_endpoint_reply_with_state(tombolo_handle endpoint, uint64_t request, uint32_t tag, const void *bytes, size_t length,
                                      const void *state, size_t state_length);

/* Hands over a state without a reply: at the start, or after a message. Returns 0. EMSGSIZE. */
int tombolo_endpoint_keep_state(tombolo_handle endpoint, const void *state, size_t length);

/* The state that was handed over last, of an endpoint or a backup. Writes at most `size` bytes, and returns how many there are; 0: none was. */
ssize_t tombolo_endpoint_state(tombolo_handle whose, void *buffer, size_t size);

/* As tombolo_endpoint_call(), of whoever has a name, and waits until somebody has. If that one dies or is superseded, the request is sent again to the
 * backup that takes over, under the same number: it is answered once. ECOMM: somebody may have received it and has died, and whoever has the name now
 * knows nothing of it. ENOENT, EPERM, EUSERS as of tombolo_endpoint_find(). */
ssize_t tombolo_endpoint_ask(tombolo_handle endpoint, const char *name, uint32_t tag, const void *bytes, size_t length,
                             void *buffer, size_t size, struct tombolo_message *reply, int64_t timeout_ns);

/* As tombolo_endpoint_send(), to whoever has a name, and waits until somebody has. If that one moves or dies before it has received the message, the next one
 * receives it: one of them, and once. Returns 0. ENOENT, EPERM, EUSERS as of tombolo_endpoint_find(). */
int tombolo_endpoint_tell(tombolo_handle endpoint, const char *name, uint32_t tag, const void *bytes, size_t length,
                          int64_t timeout_ns);

/* MIGRATION. An endpoint moves to a program of another domain that is a backup of it. Between the start and the end of a migration it receives nothing, whoever calls it waits,
 * and other calls of it fail with EINPROGRESS. Nothing that was sent to it is lost, doubled or reordered. */

/* Begins to move. ENODEV: no program of that domain is a backup that is ready; EALREADY: it is moving; EBUSY: a request waits for its reply, or a
 * message that was too long for the buffer for its receiver; EOPNOTSUPP: it has buffers, or grants of others, or a peer on another node; EINVAL: it has no name. Returns 0. */
int tombolo_endpoint_migrate_start(tombolo_handle endpoint, const char *domain);

/* Moves: everything that is queued goes to the new place, which has the name from then on, and this endpoint has ended. ECANCELED: the other program did not take it, and the
 * endpoint goes on here; EINVAL: no migration was started. Returns 0. */
int tombolo_endpoint_migrate_commit(tombolo_handle endpoint);

/* Stays, and receives again. EINVAL: no migration was started. Returns 0. */
int tombolo_endpoint_migrate_roll_back(tombolo_handle endpoint);

/* Passes a request on: `to` receives it as one of who asked, and answers. Never waits. EAGAIN: `to` has not received what was sent
 * before, and the request still waits for an answer from here; EPERM; EMSGSIZE; ECANCELED; EPIPE. Returns 0. */
int tombolo_endpoint_relay(tombolo_handle endpoint, uint64_t request, tombolo_address to, uint32_t tag, const void *bytes,
                           size_t length);

/* Sets bits, which the other one receives at once, together with those that it has not received yet. Never waits. Returns 0. */
int tombolo_endpoint_notify(tombolo_handle endpoint, tombolo_address to, uint64_t bits);

/* Most bytes of a message to this one. */
ssize_t tombolo_endpoint_max_message(tombolo_handle endpoint, tombolo_address to);

/* Bits of tombolo_peer.rights. What this endpoint may do to the peer, and what it takes from it. */
#define TOMBOLO_MAY_SEND 1u
#define TOMBOLO_MAY_REQUEST 2u
#define TOMBOLO_MAY_NOTIFY 4u
#define TOMBOLO_MAY_RELAY 8u
#define TOMBOLO_TAKES_MESSAGES 16u
#define TOMBOLO_TAKES_REQUESTS 32u
#define TOMBOLO_TAKES_NOTICES 64u
#define TOMBOLO_TAKES_RELAYED 128u

/* One whom this endpoint was introduced to. */
struct tombolo_peer {
	tombolo_address address;
	uint32_t rights;
	uint32_t is_alive;    /* 0: it has ended */
	char name[64];        /* "" where it has none */
	char domain[64];      /* "" where nobody knows */
	uint64_t reserved[4]; /* zero */
};

/* Whom this endpoint was introduced to: writes at most `count`, and returns how many there are. */
ssize_t tombolo_endpoint_peers(tombolo_handle endpoint, struct tombolo_peer *peers, size_t count);

/* One of them: who is at the other end of what was received last, as the daemon says and not as it says itself. Returns 0. ENOTCONN and others
 * as of a call to it. */
int tombolo_endpoint_peer(tombolo_handle endpoint, tombolo_address address, struct tombolo_peer *peer);

/*
 * GRANTED BUFFERS are for what is too large for a message: memory of one endpoint that another one copies from or to, with no system call.
 * Send the number of the grant in a message, so that the other one knows it. A buffer is closed by tombolo_close(); with it go all its
 * grants. EOPNOTSUPP: the endpoint is in a virtual machine, or of tombolo_endpoint_pair(); EUSERS: a limit of the distributed container,
 * whose key the sentence names; ETIMEDOUT: the daemon is away.
 */
#define TOMBOLO_ACCESS_READ 1  /* others may read it */
#define TOMBOLO_ACCESS_WRITE 2 /* others may read and write it */

/* Makes a buffer of `bytes` zero bytes that this endpoint may grant, to be read by others or to be written. Returns its handle. EINVAL: none, or too
 * many bytes. */
tombolo_handle tombolo_endpoint_buffer(tombolo_handle endpoint, size_t bytes, int access);

/* Reads or writes some of one's own buffer. Return 0. ERANGE: it is not that long. */
int tombolo_buffer_read(tombolo_handle buffer, uint64_t offset, void *into, size_t length);
int tombolo_buffer_write(tombolo_handle buffer, uint64_t offset, const void *from, size_t length);

/* Grants a buffer to another endpoint: returns the number of the grant, positive, which nobody else can use. ENOTCONN, ESTALE: nobody is there;
 * EPERM: neither may call the other; EINVAL: the buffer is another endpoint's; ECONNRESET: it was granted at a daemon that has died: take
 * those grants back first. */
int64_t tombolo_endpoint_grant(tombolo_handle endpoint, tombolo_handle buffer, tombolo_address to);

/* Takes a grant back. After it returned 0, the other one sees nothing of what this one writes, and changes nothing. ENOENT: the buffer has no
 * such grant. */
int tombolo_endpoint_revoke(tombolo_handle endpoint, tombolo_handle buffer, int64_t grant);

/* What was granted: its owner's grant to this endpoint, or to another one. */
struct tombolo_grant {
	int64_t grant;
	tombolo_address owner;
	uint64_t bytes;
	uint32_t access;        /* TOMBOLO_ACCESS_READ, TOMBOLO_ACCESS_WRITE */
	uint32_t reserved_word; /* zero */
	uint64_t reserved[4];   /* zero */
};

/* Looks a grant up by its number. Fails as a copy does. Returns 0. */
int tombolo_endpoint_granted(tombolo_handle endpoint, int64_t grant, struct tombolo_grant *granted, int64_t timeout_ns);

/* Copy: from a granted buffer, to one, or from one to another. The first copy asks the daemon for the memory; the others ask nobody. The
 * time-out is for the daemon, and for an owner that is moving the buffer; 0 is ten seconds.
 * ENOENT: there is no such grant, or not to this endpoint; EKEYREVOKED: it was taken back, perhaps in the midst of the copy;
 * EOWNERDEAD: its owner has ended; EACCES: it may only be read; ERANGE: it is not that long. Return 0; after a failure some of the bytes may
 * have been copied. Grants to others can be named by an endpoint whose `copies` the topology file has set. */
int tombolo_endpoint_copy_in(tombolo_handle endpoint, int64_t from, uint64_t offset, void *into, size_t length,
                             int64_t timeout_ns);
int tombolo_endpoint_copy_out(tombolo_handle endpoint, const void *from, size_t length, int64_t to, uint64_t offset,
                              int64_t timeout_ns);
int tombolo_endpoint_copy(tombolo_handle endpoint, int64_t from, uint64_t from_offset, int64_t to, uint64_t to_offset,
                          uint64_t length, int64_t timeout_ns);

/* The same between a granted buffer and one's own, so that both ends of a transfer can each make a part of it. */
int tombolo_endpoint_copy_to_own(tombolo_handle endpoint, int64_t from, uint64_t from_offset, tombolo_handle buffer,
                                 uint64_t offset, uint64_t length, int64_t timeout_ns);
int tombolo_endpoint_copy_from_own(tombolo_handle endpoint, tombolo_handle buffer, uint64_t offset, int64_t to,
                                   uint64_t to_offset, uint64_t length, int64_t timeout_ns);

/*
 * EVENT LOOPS. tombolo_poll_descriptor(endpoint, TOMBOLO_READING) is readable when there may be something to receive: then receive with
 * a time-out of 0 until EAGAIN. tombolo_wait(endpoint, TOMBOLO_READING, ...) sleeps until there is. channel.h has the rules of both. This
 * is the same as the first.
 */
int tombolo_endpoint_descriptor(tombolo_handle endpoint);

#ifdef __cplusplus
}
#endif

#endif /* TOMBOLO_ENDPOINT_H */
