/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Services: a program in C serves files to the domains that the topology lets see them: libtombolo.so. docs/services.md shows it step by
 * step, docs/topology.md has the kind `program`.
 *
 *     #include <tombolo/service.h>                  cc program.c -ltombolo
 *
 *     tombolo_service clock = tombolo_service_new("clock");
 *     int now = tombolo_service_text(clock, "now", "read");
 *     struct tombolo_call call;
 *     tombolo_service_start(clock);
 *     while (tombolo_service_next(clock, &call, -1) == 0)
 *         if (call.file == now)
 *             tombolo_service_answer(clock, call.id, "noon\n", 5);
 *
 * A service is declared (its files), started, and asked: tombolo_service_next() returns the next call of a consumer, and the program
 * answers or refuses each, at once or later, in any order, from any thread. A consumer waits as long; one that has gone is no error.
 *
 * ERRORS are as in tombolo/channel.h: -1 and errno, and tombolo_error_text() says it in a sentence. Every call may give
 *     EBADF   the service is closed, or never was one
 *     EFAULT  a pointer that must be there is NULL
 *     ESTALE  the service was made by the parent of this process
 *     ENOTRECOVERABLE  a defect of this library
 *
 * THREADS. All functions may be called by all threads, and not by signal handlers. The library has one thread for each service that is
 * started, which has all signals blocked.
 */
#ifndef TOMBOLO_SERVICE_H
#define TOMBOLO_SERVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A service: positive. -1 is none. A number that was closed does not come back. */
typedef int64_t tombolo_service;

/* Kinds of calls. */
#define TOMBOLO_CALL_READ 1  /* a text or a device is read, or a control that TOMBOLO_READABLE is: answer with what is read */
#define TOMBOLO_CALL_WRITE 2 /* a line of a control or a session, or a record of an exchange: answer, for a session with what is read then */
#define TOMBOLO_CALL_IOCTL 3 /* ioctl(2) of a session: answer with the bytes that the caller gets back */

/* Flags of a file. */
#define TOMBOLO_READABLE 1u   /* of a control: who reads it asks as well */
#define TOMBOLO_IDEMPOTENT 2u /* what was not answered when this program died is asked again at the next one; without it the caller
                                 gets ECONNRESET. Texts are so by themselves */
#define TOMBOLO_IOCTL 4u      /* of a session: ioctl(2) is a call; without it, it fails (ENOTTY) */

/* A call of a consumer. The pointers are good until it is answered or refused. */
struct tombolo_call {
	uint64_t id;       /* for the answer; never used again */
	int32_t file;      /* the number of the file */
	uint32_t kind;     /* TOMBOLO_CALL_READ, ... */
	uint64_t session;  /* of a session: the open file, the same for all its calls, and never used again; of other files 0 */
	const char *bytes; /* what was written, or the data of an ioctl; a NUL follows */
	size_t length;     /* bytes, without that NUL */
	size_t takes;      /* most bytes of the answer that the caller takes; what is longer is cut */
	uint32_t number;   /* of an ioctl */
	uint32_t uid;      /* user and group of who opened a session, as the domain says; of other files 0 */
	uint32_t gid;
	uint32_t reserved;
	const char *dc;     /* the distributed container of the caller, and the domain: the daemon's word */
	const char *domain;
};

/* How a stream keeps records. Clear it, then set `size` and what you want; NULL is the same as all zero. */
struct tombolo_stream_options {
	uint32_t size;          /* sizeof(struct tombolo_stream_options) */
	uint32_t replay;        /* not 0: a new reader begins with the oldest record that is kept, not with the next one */
	uint64_t history;       /* records that are kept for readers that are behind; 0: 256 */
	uint64_t history_bytes; /* and their bytes at most; 0: 1048576 */
	uint64_t reserved[4];   /* zero */
};

/* What is to be done about the last failure of this thread, as a sentence; as in tombolo/channel.h. */
const char *tombolo_error_text(void);

/* A service of the name that the topology file has. Nothing is offered yet. EINVAL: the name is no text in UTF-8. */
tombolo_service tombolo_service_new(const char *name);

/*
 * FILES are declared before the start; each function returns the file's number, from 0 on. `verb` is a word of your own: `allow` of the topology
 * gives it to domains, and who has it not can't open the file. What can't be (a name with '/', a verb with a blank, a name twice) is said
 * by tombolo_service_start(). EBUSY: it is started already.
 */

/* A file that is read: each read from its start asks for the whole text, of 1 MiB at most. */
int tombolo_service_text(tombolo_service service, const char *name, const char *verb);

/* A file to which lines are written, each done or refused before write(2) returns. */
int tombolo_service_control(tombolo_service service, const char *name, const char *verb, uint32_t flags);

/* A file on which each who opens it has a session of its own: lines are asked and answered. */
int tombolo_service_session(tombolo_service service, const char *name, const char *verb, uint32_t flags);

/* A file of records, each of which every reader gets once. */
int tombolo_service_stream(tombolo_service service, const char *name, const char *verb,
                           const struct tombolo_stream_options *options);

/* The same, to which records are written as well (TOMBOLO_CALL_WRITE). Who writes one does not wait: an error is that of its next write, and each record
 * is a call, also where its writer has closed the file meanwhile. */
int tombolo_service_exchange(tombolo_service service, const char *name, const char *verb,
                             const struct tombolo_stream_options *options);

/* Offers the service to the daemon of this domain, which is waited for, for ten seconds. Returns 0 when the daemon was asked: what it refuses (a name that the
 * topology has not for this domain) ends the service, as tombolo_service_next() says. EINVAL: a file can't be as it was declared; EALREADY: it
 * is started; ECONNREFUSED, ETIMEDOUT: no daemon. */
int tombolo_service_start(tombolo_service service);

/*
 * CALLS. At most 256 of one domain, and 4096 in all, have no answer yet; those that come then are refused (EAGAIN).
 */

/* Takes the next call; waits for it so many ns (-1: as long as it takes, 0: not at all). Returns 0. ETIMEDOUT; EAGAIN: none is there, and this
 * does not wait; ESHUTDOWN: the service is over, as the sentence says: the daemon refused it, or took it away, or it is closed. */
int tombolo_service_next(tombolo_service service, struct tombolo_call *call, int64_t timeout_ns);

/* Answers a call. Bytes may be NULL with a length of 0. Returns 0, also where nobody waits any more. ENOENT: there is no such call, or it has
 * its answer; EMSGSIZE: more than 1 MiB. */
int tombolo_service_answer(tombolo_service service, uint64_t id, const void *bytes, size_t length);

/* Refuses a call: `error` is the errno of the caller's read(2), write(2) or ioctl(2). EINVAL: `error` is none. */
int tombolo_service_refuse(tombolo_service service, uint64_t id, int error);

/* 1: nobody waits for this call any more: who asked was interrupted, has closed the file, or is gone. 0: somebody does. */
int tombolo_service_is_cancelled(tombolo_service service, uint64_t id);

/* Gives a record to all readers of a stream, now or as soon as they take it. Waits for nobody: a reader that falls out of the history loses
 * the oldest records, which are counted. EMSGSIZE: more than 64 KiB; EINVAL: the file is no stream; ENOTCONN: the service is not started. */
int tombolo_service_publish(tombolo_service service, int file, const void *record, size_t length);

/* A descriptor for poll(2): readable while a call waits, and when the service is over. It belongs to the service; read nothing from it. */
int tombolo_service_descriptor(tombolo_service service);

/* Ends the service. Calls that were not answered fail (EIO). Returns 0. */
int tombolo_service_close(tombolo_service service);

#ifdef __cplusplus
}
#endif
#endif
