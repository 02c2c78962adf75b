/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Channels between programs, through shared memory: libtombolo.so. A channel has two ends; each can read and write. To be
 * used like files, with the errors of files. docs/channels.md shows it step by step.
 *
 *     #include <tombolo/channel.h>                  cc program.c -ltombolo
 *
 *     tombolo_handle offer = tombolo_offer("/run/user/1000/echo", NULL);
 *     tombolo_handle channel = tombolo_accept(offer);
 *     char message[4096];
 *     ssize_t length;
 *     while ((length = tombolo_read(channel, message, sizeof message)) > 0)
 *         tombolo_write(channel, message, (size_t)length);
 *     tombolo_close(channel);
 *     tombolo_close(offer);
 *
 * ERRORS. A call that fails returns -1 (tombolo_loan: NULL) with errno set, and tombolo_error_text() says in a sentence what
 * went wrong, where, and what to do. Those that every call may give:
 *     EBADF   the handle is closed, or never was one
 *     EINVAL  an argument is out of its bounds, or the handle is of another kind (an offer is no channel)
 *     EFAULT  a pointer that must be there is NULL
 *     EBUSY   another thread is in a call for this direction of this channel, or has lent or viewed memory of it
 *     EPROTO  the program at the other end broke the rules of the shared memory; the channel is closed
 *     ESTALE  the channel was taken into use by the parent of this process: see FORKS
 *     ENOTRECOVERABLE  a defect of this library
 *
 * WAITING. Calls wait as long as it takes, or as tombolo_set_timeout() says: ETIMEDOUT when the time is over, EAGAIN where
 * they may not wait at all (TOMBOLO_NONBLOCK). A signal handler runs while a call waits, and the call goes on (as with
 * SA_RESTART); tombolo_wait() is the one that returns EINTR. Calls never raise SIGPIPE.
 *
 * THREADS. Handles may be used by all threads. One thread may read a channel while another writes it; a second one for the same
 * direction gets EBUSY at once, so use a lock of your own to share a direction. Any thread may close a handle: who waits on
 * it returns. No function may be called by a signal handler. Threads are not cancelled (pthread_cancel) inside of a call.
 *
 * FORKS. The first call that reads, writes or waits takes a channel into use, in the process that makes it. So a
 * child may use a channel from before the fork that the parent has not used, and only one of the two may. In the other one
 * calls fail (ESTALE, or EBUSY where a thread of the parent was in the midst of one), and it ought to close the handle, for
 * the program at the other end sees the end only when all that hold the channel are gone. An offer is used by the process that made
 * it. exec() closes everything. A program that closes descriptors that are not its own (closefrom), or puts others in their place, ends
 * what is behind them: calls that need one fail (EBADF, EPIPE). What it put there is its own, and the library leaves it alone.
 *
 * THE OTHER END is not trusted by this library: whatever it does, calls return what is right or fail. But memory that is lent or
 * viewed is shared with it, and a hostile one may change the bytes while you look: copy what you check, then check the copy.
 */
#ifndef TOMBOLO_CHANNEL_H
#define TOMBOLO_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A channel or an offer: positive. -1 is none. A number that was closed does not come back. */
typedef int64_t tombolo_handle;

/* Directions, for tombolo_wait() and others. */
#define TOMBOLO_READING 1
#define TOMBOLO_WRITING 2

/* Times are in ns; 0 is not to wait. */
#define TOMBOLO_FOREVER (-1)

/* What tombolo_mode() returns. */
#define TOMBOLO_MODE_MESSAGES 0
#define TOMBOLO_MODE_STREAM 1

/* Bits of `flags`. */
#define TOMBOLO_STREAM 1u    /* bytes without seams, like a pipe, instead of messages */
#define TOMBOLO_NONBLOCK 2u  /* calls do not wait: as after tombolo_set_timeout(..., 0) for both directions */
#define TOMBOLO_ANY_USER 4u  /* programs of other users are welcome: at a path only */
#define TOMBOLO_NO_SPIN 8u   /* sleep at once instead of watching for some microseconds: saves processor time, costs latency */
#define TOMBOLO_POPULATE 16u /* have all memory provided at the first use, so that no message waits for the kernel */
#define TOMBOLO_LOCK 32u     /* and keep it, never swapped out: counts against `ulimit -l` (ENOMEM, EPERM) */
#define TOMBOLO_HUGE_PAGES 64u /* memory in huge pages, if enough are free; at both ends, and only if you trust the other one: it could
                                  take the pages back, and your next access would end your program (SIGBUS) */

/* What a channel shall be like. Clear it, then set `size` and what you want; NULL is the same as all zero. */
struct tombolo_options {
	uint32_t size;        /* sizeof(struct tombolo_options) */
	uint32_t flags;       /* TOMBOLO_STREAM, ... */
	uint32_t ring_bytes;  /* bytes of shared memory for each direction: a power of two, 4096 to 16777216; 0: the default,
	                         262144. The offerer decides; the daemon, where it makes the channel */
	uint32_t batch_bytes; /* see tombolo_set_batch() */
	int64_t wait_ns;      /* tombolo_open(): how long to wait for an offerer. 0: it must be there, and is given ten seconds
	                         to answer; TOMBOLO_FOREVER */
	uint64_t reserved[5]; /* zero */
};

/* What is to be done about the last failure of this thread, as a sentence: "" before the first one. Stays until the next one. */
const char *tombolo_error_text(void);

/*
 * NAMES. A name with a '/' is the path of a Unix socket, which the offer makes with mode 0600 and removes when it is closed (that of
 * a dead program is replaced), of 107 bytes at most. Each side checks that the other runs as the same user or as root. No
 * daemon is needed. Any other name is a service of the kind `channel` of the domain that the program runs in (docs/topology.md):
 * the daemon says who may offer it and who may open it.
 */

/* Offers channels under a name: each tombolo_open() of it makes one. Returns the offer.
 * EADDRINUSE: somebody offers it already; EEXIST: the path is there, and is no socket; ENAMETOOLONG; EACCES: not allowed here;
 * ENOENT: no such folder or service; ECONNREFUSED: no daemon. */
tombolo_handle tombolo_offer(const char *name, const struct tombolo_options *options);

/* Waits for the next opener; returns its channel, which has the mode, the size, the batch and NONBLOCK of the offer's options.
 * EAGAIN, ETIMEDOUT as the offer's time-out says (tombolo_set_timeout() of the offer for TOMBOLO_READING). */
tombolo_handle tombolo_accept(tombolo_handle offer);

/* Opens the channel that is offered under a name. The mode must be what the offerer says: EPROTOTYPE if not.
 * ENOENT, ECONNREFUSED, EAGAIN: nobody offers it now (see wait_ns); ETIMEDOUT; EACCES: not for this program; EPROTO: what listens
 * there is something else. */
tombolo_handle tombolo_open(const char *name, const struct tombolo_options *options);

/* Makes a channel and gives both ends, for threads, or for a parent and a child: see FORKS. Returns 0. */
int tombolo_pair(const struct tombolo_options *options, tombolo_handle ends[2]);

/* How many descriptors make an end. */
#define TOMBOLO_DESCRIPTORS 5

/* Gives up an end that has not been used, as the descriptors that it is made of, to pass them to another process (SCM_RIGHTS, or
 * exec after clearing FD_CLOEXEC). The handle is closed. Returns 0. EALREADY: it has been used. */
int tombolo_channel_descriptors(tombolo_handle channel, int descriptors[TOMBOLO_DESCRIPTORS]);

/* Takes over the descriptors of an end, in the same order, from somebody trusted. They belong to the handle then; after a failure
 * they are still the caller's. EPROTO: they are no end; EPROTOTYPE: the mode is not that of the options. */
tombolo_handle tombolo_from_descriptors(const int descriptors[TOMBOLO_DESCRIPTORS],
                                        const struct tombolo_options *options);

/*
 * MESSAGES come whole, once, in order. An empty message is a message; tombolo_next_length() and tombolo_view() tell it
 * from the end. STREAMS (TOMBOLO_STREAM) are like pipes.
 */

/* Reads a message, or some bytes of a stream. Returns how many; 0 at the end: the other end has closed or is dead, and all that it
 * had sent has been read. EMSGSIZE: the message is longer than `size`; it stays, see tombolo_next_length(). */
ssize_t tombolo_read(tombolo_handle channel, void *buffer, size_t size);
ssize_t tombolo_readv(tombolo_handle channel, const struct iovec *parts, int count);

/* Writes a message, or bytes of a stream. Returns how many: all of a message; of a stream all, or as many as there was room for before
 * the time was over. EPIPE: the other end has closed, or is dead, which shows at the latest when there is no room; EMSGSIZE: longer
 * than tombolo_max_message(). A message longer than half a ring goes in pieces: after EAGAIN or ETIMEDOUT, write the same bytes again,
 * and it goes on. Anything else that is written or committed, also from the same memory, and tombolo_cancel() give it up: the other
 * end gets nothing of it. What was sent is kept and compared, so a message of many rings had better wait for room (a time-out). */
ssize_t tombolo_write(tombolo_handle channel, const void *bytes, size_t length);
ssize_t tombolo_writev(tombolo_handle channel, const struct iovec *parts, int count);

/* Waits for the next message and returns its length, without taking it. ENODATA: the end. */
ssize_t tombolo_next_length(tombolo_handle channel);

/*
 * IN PLACE, for messages (EOPNOTSUPP for streams). Nothing is copied. Until memory is given back, other calls for this direction give
 * EBUSY. It stays where it is until then, also when the channel or its other end is closed.
 */

/* Waits for room for a message of `length` bytes (a little less than half a ring at most) and lends it: fill it in, then commit. What
 * you do not write is whatever the channel carried there before. EPIPE, EMSGSIZE. */
void *tombolo_loan(tombolo_handle channel, size_t length);
/* Sends the first `length` bytes of what was lent. Returns 0. EPIPE: the end is closed; the loan is over all the same. */
int tombolo_commit(tombolo_handle channel, size_t length);
/* Sends nothing of what was lent, or gives up a message that has gone in part. Returns 0. */
int tombolo_cancel(tombolo_handle channel);

/* Waits for the next message and shows it where it is: returns its length, and in `*bytes` where; NULL (and 0) is the end. Look at
 * each byte once: see THE OTHER END. */
ssize_t tombolo_view(tombolo_handle channel, const void **bytes);
/* Takes the message that is viewed off the channel. Returns 0. */
int tombolo_release(tombolo_handle channel);

/* Holds small messages (or writes) back until they are `bytes` together, at most a quarter of a ring, and shows them to the other end
 * at once: many small ones go several times faster. 0, the default, holds nothing. Who waits for an answer flushes first. */
int tombolo_set_batch(tombolo_handle channel, size_t bytes);
/* Shows what is held back. tombolo_close() does so, too, as far as there is room. */
int tombolo_flush(tombolo_handle channel);

/* Ends the stream that goes out, like shutdown(SHUT_WR): the other end reads what was written and then 0. What comes in goes on.
 * EOPNOTSUPP for messages. */
int tombolo_finish(tombolo_handle channel);

/* How long calls of a direction wait: ns, 0 not at all, TOMBOLO_FOREVER. */
int tombolo_set_timeout(tombolo_handle handle, int direction, int64_t timeout_ns);

/* Sleeps until there is something to read or accept (or the end), or room to write (or nobody to write to). Returns 1, or 0 when
 * the time was over. EINTR: a signal handler ran. */
int tombolo_wait(tombolo_handle handle, int direction, int64_t timeout_ns);

/*
 * A descriptor for poll(2), select(2), epoll(7) and event loops. Watch it for readability (POLLIN), for both directions:
 *   TOMBOLO_READING  readable when there is something to read or accept, or the end
 *   TOMBOLO_WRITING  readable when there may be room: write then until EAGAIN; it is readable again when what was refused
 *                    fits, or nobody is there to write to
 * Use it with a time-out of 0. It may be readable for nothing; then calls give EAGAIN. It belongs to the handle: do not read, write or
 * close it, and take it out of your event loop before you close the handle. Each call for a handle and direction returns the
 * same one. From the first one on, calls of that direction do what keeps it right, which costs up to two system calls
 * when the channel runs empty.
 */
int tombolo_poll_descriptor(tombolo_handle handle, int direction);

/* Takes messages of up to `bytes` bytes from the other end, which hears of it; by default, and at least, those that fit into a
 * little less than half a ring. So much memory may be taken up here. Set it before you read, for it can only be raised. */
int tombolo_set_message_limit(tombolo_handle channel, size_t bytes);

/* Bytes of the longest message that the other end takes; for a stream, what is written at once or not at all. */
ssize_t tombolo_max_message(tombolo_handle channel);

/* TOMBOLO_MODE_MESSAGES or TOMBOLO_MODE_STREAM. */
int tombolo_mode(tombolo_handle channel);

/* Who is at the other end, as far as the kernel or the daemon says: "uid 1000 pid 4711", "domain shop/till", or "" if nobody knows.
 * Writes at most `size` bytes with a NUL and returns the length of the whole text, as snprintf() does. */
ssize_t tombolo_peer(tombolo_handle channel, char *text, size_t size);

/* Closes a channel, for both directions (the other end reads what was sent before, and then the end), or an offer (its channels
 * live on). Returns 0; EBADF if it is closed already. Memory that is lent or viewed stays until it is given back. */
int tombolo_close(tombolo_handle handle);

#ifdef __cplusplus
}
#endif

#endif /* TOMBOLO_CHANNEL_H */
