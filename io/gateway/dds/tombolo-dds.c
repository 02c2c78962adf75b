/*
 * tombolo-dds: the half of `tombolo events gateway --dds` that speaks DDS, by Cyclone DDS. It is a program of its own because Cyclone DDS is a shared
 * library and `tombolo` is static, and so that what breaks in here is one connection. docs/spec/dds-program.md has its arguments and its frames.
 *
 * Threads: one reads frames from standard input; one writes what is to arrive and one the rest, which waits for nobody; one (`scout`) looks
 * at the types that other programs have; the main thread takes what comes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>
#include "dds/dds.h"
#include "dds/ddsi/ddsi_serdata.h"
#include "event.h"

/* Bytes of an event: as many as a channel's events have at the most (wire::events::EVENT_BYTES_MAX). */
#define EVENT_BYTES_MAX (63 * 1024)
/* Messages that may be queued here for each of both writers (gateway::WINDOW). */
#define WINDOW 64
/* Reliable samples of one topic that may have come and have no receipt yet (gateway::ARRIVALS_MAX). */
#define ARRIVALS_MAX 32
#define TOPICS_MAX 128
/* Arguments of a topic. */
#define TOPIC_ARGUMENTS 10
/* How long events that are to arrive wait, after the start, for somebody who reads them: until the others have been found again. */
#define DISCOVERY DDS_SECS(5)
/* How long one attempt to write, or to learn a type, waits. */
#define PATIENCE DDS_MSECS(500)

struct topic {
  /* `waits`: each event is to get where it goes, however long that takes; `reliable` is the quality of service. */
  bool out, waits, reliable, transient_local, manual, any;
  long history, deadline_ms, lease_ms;
  const char *name;
  /* 0: its type is not known yet. Set once. */
  _Atomic dds_entity_t entity;
  uint64_t number;
  /* Under `lock`: samples without a receipt. */
  unsigned unreceipted;
  unsigned long long foreign, too_long, unsent;
};

struct message {
  uint16_t topic;
  uint32_t length;
  uint8_t bytes[];
};

struct queue {
  struct message *messages[WINDOW];
  unsigned count;
  bool waits;
};

static struct topic topics[TOPICS_MAX];
static int topic_count;
static struct queue queues[2] = {{.waits = false}, {.waits = true}};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t speaks = PTHREAD_MUTEX_INITIALIZER;
static dds_entity_t participant, waitset, receipts;
static dds_time_t joined;

static void leave(int code) {
  /* Other programs learn at once that this one is gone; whether it can be said is not waited for. */
  alarm(2);
  if (participant > 0) (void) dds_delete(participant);
  _exit(code);
}

static void write_whole(const void *bytes, size_t length) {
  const uint8_t *at = bytes;
  while (length > 0) {
    ssize_t written = write(STDOUT_FILENO, at, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(1); /* the gateway is gone */
    at += written;
    length -= (size_t) written;
  }
}

static void say(char kind, unsigned topic, const void *bytes, size_t length) {
  uint32_t rest = (uint32_t) (3 + length);
  uint8_t head[7] = {(uint8_t) rest, (uint8_t) (rest >> 8), (uint8_t) (rest >> 16), (uint8_t) (rest >> 24),
                     (uint8_t) kind, (uint8_t) topic, (uint8_t) (topic >> 8)};
  pthread_mutex_lock(&speaks);
  write_whole(head, sizeof head);
  write_whole(bytes, length);
  pthread_mutex_unlock(&speaks);
}

#define TEXT(kind, topic, ...) \
  do { \
    char text_[512]; \
    snprintf(text_, sizeof text_, __VA_ARGS__); \
    say(kind, topic, text_, strlen(text_)); \
  } while (0)

__attribute__((noreturn)) static void fail(const char *what, dds_return_t code) {
  TEXT('e', 0, "%s: %s", what, dds_strretcode(code));
  leave(1);
  abort();
}

/* What goes wrong often is told ever more seldom. */
static bool worth_telling(unsigned long long count) {
  return count > 0 && (count & (count - 1)) == 0;
}

/* ---- What the gateway says ---- */

static bool read_whole(void *bytes, size_t length) {
  uint8_t *at = bytes;
  while (length > 0) {
    ssize_t got = read(STDIN_FILENO, at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= (size_t) got;
  }
  return true;
}

static void take_message(unsigned topic, uint32_t length) {
  struct message *message = malloc(sizeof *message + length);
  if (message == NULL) fail("memory for a message", DDS_RETCODE_OUT_OF_RESOURCES);
  message->topic = (uint16_t) topic;
  message->length = length;
  if (!read_whole(message->bytes, length)) leave(0);
  struct queue *queue = &queues[topics[topic].waits];
  pthread_mutex_lock(&lock);
  if (queue->count == WINDOW) fail("more messages than the window holds", DDS_RETCODE_OUT_OF_RESOURCES);
  queue->messages[queue->count++] = message;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void *listen_to_gateway(void *unused) {
  (void) unused;
  uint8_t head[7];
  while (read_whole(head, sizeof head)) {
    uint32_t rest = head[0] | (uint32_t) head[1] << 8 | (uint32_t) head[2] << 16 | (uint32_t) head[3] << 24;
    unsigned topic = head[5] | (unsigned) head[6] << 8;
    bool known = rest >= 3 && rest - 3 <= EVENT_BYTES_MAX && topic < (unsigned) topic_count;
    if (known && head[4] == 'm' && topics[topic].out) {
      take_message(topic, rest - 3);
    } else if (known && head[4] == 'r' && rest == 3 && !topics[topic].out) {
      pthread_mutex_lock(&lock);
      if (topics[topic].unreceipted > 0) topics[topic].unreceipted--;
      pthread_mutex_unlock(&lock);
      (void) dds_set_guardcondition(receipts, true);
    } else {
      fail("a frame of the gateway", DDS_RETCODE_BAD_PARAMETER);
    }
  }
  leave(0);
  return NULL;
}

/* ---- Out ---- */

static void await_discovery(const struct topic *topic) {
  dds_publication_matched_status_t matched = {.current_count = 0};
  while (topic->waits && !topic->transient_local && matched.current_count == 0 && dds_time() < joined + DISCOVERY) {
    if (dds_get_publication_matched_status(topic->entity, &matched) != DDS_RETCODE_OK) return;
    if (matched.current_count == 0) dds_sleepfor(DDS_MSECS(5));
  }
}

static dds_return_t write_message(struct message *message) {
  struct topic *topic = &topics[message->topic];
  await_discovery(topic);
  tombolo_Event event = {.number = topic->number++};
  event.data._buffer = message->bytes;
  event.data._length = event.data._maximum = message->length;
  dds_return_t code;
  do {
    code = dds_write(topic->entity, &event);
  } while (code == DDS_RETCODE_TIMEOUT && topic->waits); /* readers hold it up */
  return code;
}

static void await_readers(const struct message *message) {
  const struct topic *topic = &topics[message->topic];
  while (dds_wait_for_acks(topic->entity, PATIENCE) == DDS_RETCODE_TIMEOUT) {
  }
}

static void *write_queue(void *which) {
  struct queue *queue = which;
  for (;;) {
    struct message *batch[WINDOW];
    dds_return_t codes[WINDOW];
    pthread_mutex_lock(&lock);
    while (queue->count == 0) pthread_cond_wait(&changed, &lock);
    unsigned count = queue->count;
    memcpy(batch, queue->messages, count * sizeof batch[0]);
    queue->count = 0;
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < count; i++) codes[i] = write_message(batch[i]);
    for (unsigned i = 0; i < count && queue->waits; i++) await_readers(batch[i]);
    for (unsigned i = 0; i < count; i++) {
      struct topic *topic = &topics[batch[i]->topic];
      const char *why = dds_strretcode(codes[i]);
      if (queue->waits && codes[i] != DDS_RETCODE_OK) {
        say('n', batch[i]->topic, why, strlen(why));
      } else {
        say(queue->waits ? 't' : 'g', batch[i]->topic, "", 0);
        if (codes[i] != DDS_RETCODE_OK && worth_telling(++topic->unsent))
          TEXT('s', batch[i]->topic, "%llu events did not get to %s: %s", topic->unsent, topic->name, why);
      }
      free(batch[i]);
    }
  }
  return NULL;
}

/* ---- In ---- */

static bool may_take(struct topic *topic) {
  pthread_mutex_lock(&lock);
  bool may = topic->entity != 0 && !topic->out && (!topic->waits || topic->unreceipted < ARRIVALS_MAX);
  pthread_mutex_unlock(&lock);
  return may;
}

static void arrived(unsigned index, const void *bytes, size_t length) {
  struct topic *topic = &topics[index];
  if (length > EVENT_BYTES_MAX) {
    if (worth_telling(++topic->too_long))
      TEXT('s', index, "%llu samples of %s were longer than an event", topic->too_long, topic->name);
    return;
  }
  pthread_mutex_lock(&lock);
  topic->unreceipted++;
  pthread_mutex_unlock(&lock);
  say('a', index, bytes, length);
}

/* Takes one sample; answers whether there was any. */
static bool take_event(unsigned index) {
  void *sample = NULL;
  dds_sample_info_t info;
  if (dds_take(topics[index].entity, &sample, &info, 1, 1) <= 0) return false;
  const tombolo_Event *event = sample;
  if (info.valid_data) arrived(index, event->data._buffer, event->data._length);
  (void) dds_return_loan(topics[index].entity, &sample, 1);
  return true;
}

static bool take_any(unsigned index) {
  struct ddsi_serdata *sample = NULL;
  dds_sample_info_t info;
  if (dds_takecdr(topics[index].entity, &sample, 1, &info, DDS_ANY_STATE) <= 0) return false;
  size_t length = ddsi_serdata_size(sample);
  if (info.valid_data && length > EVENT_BYTES_MAX) {
    arrived(index, NULL, length);
  } else if (info.valid_data) {
    static uint8_t bytes[EVENT_BYTES_MAX];
    ddsi_serdata_to_ser(sample, 0, length, bytes);
    arrived(index, bytes, length);
  }
  ddsi_serdata_unref(sample);
  return true;
}

static const char *policy_name(uint32_t id) {
  switch (id) {
    case DDS_DURABILITY_QOS_POLICY_ID: return "durability";
    case DDS_DEADLINE_QOS_POLICY_ID: return "deadline";
    case DDS_LIVELINESS_QOS_POLICY_ID: return "liveliness";
    case DDS_RELIABILITY_QOS_POLICY_ID: return "reliability";
    case DDS_DATA_REPRESENTATION_QOS_POLICY_ID: return "data representation";
    case DDS_TYPE_CONSISTENCY_ENFORCEMENT_QOS_POLICY_ID: return "type";
    default: return "quality of service";
  }
}

/* Tells what has happened to a topic beside samples, and forgets it. */
static void look_at_status(unsigned index) {
  struct topic *topic = &topics[index];
  if (topic->entity == 0) return;
  if (topic->out) {
    dds_offered_incompatible_qos_status_t unfit;
    dds_offered_deadline_missed_status_t late;
    if (dds_get_offered_incompatible_qos_status(topic->entity, &unfit) == DDS_RETCODE_OK && unfit.total_count_change > 0 && worth_telling(unfit.total_count))
      TEXT('s', index, "nothing goes to %u programs that read %s: the last one's %s does not fit", unfit.total_count, topic->name, policy_name(unfit.last_policy_id));
    if (dds_get_offered_deadline_missed_status(topic->entity, &late) == DDS_RETCODE_OK && late.total_count_change > 0 && worth_telling(late.total_count))
      TEXT('s', index, "%u times there was no event for %s within the deadline", late.total_count, topic->name);
  } else {
    dds_requested_incompatible_qos_status_t unfit;
    dds_requested_deadline_missed_status_t late;
    uint32_t taken;
    (void) dds_take_status(topic->entity, &taken, DDS_DATA_AVAILABLE_STATUS);
    if (dds_get_requested_incompatible_qos_status(topic->entity, &unfit) == DDS_RETCODE_OK && unfit.total_count_change > 0 && worth_telling(unfit.total_count))
      TEXT('s', index, "nothing comes from %u programs that write %s: the last one's %s does not fit", unfit.total_count, topic->name, policy_name(unfit.last_policy_id));
    if (dds_get_requested_deadline_missed_status(topic->entity, &late) == DDS_RETCODE_OK && late.total_count_change > 0 && worth_telling(late.total_count))
      TEXT('s', index, "%u times no sample of %s came within the deadline", late.total_count, topic->name);
  }
}

static void take_for_ever(void) {
  for (;;) {
    (void) dds_waitset_wait(waitset, NULL, 0, DDS_INFINITY);
    bool triggered;
    (void) dds_take_guardcondition(receipts, &triggered);
    for (unsigned index = 0; index < (unsigned) topic_count; index++) {
      struct topic *topic = &topics[index];
      look_at_status(index);
      while (may_take(topic) && (topic->any ? take_any(index) : take_event(index))) {
      }
    }
  }
}

/* ---- Topics and their types ---- */

static dds_qos_t *qos_of(const struct topic *topic) {
  dds_qos_t *qos = dds_create_qos();
  dds_history_kind_t keeps = topic->reliable ? DDS_HISTORY_KEEP_ALL : DDS_HISTORY_KEEP_LAST;
  int32_t depth = topic->history > 0 ? (int32_t) topic->history : topic->out ? 1 : ARRIVALS_MAX;
  dds_qset_reliability(qos, topic->reliable ? DDS_RELIABILITY_RELIABLE : DDS_RELIABILITY_BEST_EFFORT, PATIENCE);
  dds_qset_durability(qos, topic->transient_local ? DDS_DURABILITY_TRANSIENT_LOCAL : DDS_DURABILITY_VOLATILE);
  dds_qset_history(qos, keeps, depth);
  if (topic->out && topic->transient_local)
    dds_qset_durability_service(qos, 0, DDS_HISTORY_KEEP_LAST, depth, DDS_LENGTH_UNLIMITED, DDS_LENGTH_UNLIMITED, DDS_LENGTH_UNLIMITED);
  if (!topic->out && topic->reliable)
    dds_qset_resource_limits(qos, 4 * ARRIVALS_MAX, DDS_LENGTH_UNLIMITED, DDS_LENGTH_UNLIMITED);
  if (topic->deadline_ms > 0) dds_qset_deadline(qos, DDS_MSECS(topic->deadline_ms));
  if (topic->lease_ms > 0)
    dds_qset_liveliness(qos, topic->manual ? DDS_LIVELINESS_MANUAL_BY_TOPIC : DDS_LIVELINESS_AUTOMATIC, DDS_MSECS(topic->lease_ms));
  dds_qset_ignorelocal(qos, DDS_IGNORELOCAL_PARTICIPANT);
  return qos;
}

static dds_return_t open_topic(struct topic *topic, const dds_topic_descriptor_t *type) {
  dds_entity_t of = dds_create_topic(participant, type, topic->name, NULL, NULL);
  if (of < 0) return of;
  dds_qos_t *qos = qos_of(topic);
  dds_entity_t entity = topic->out ? dds_create_writer(participant, of, qos, NULL) : dds_create_reader(participant, of, qos, NULL);
  dds_delete_qos(qos);
  if (entity < 0) return entity;
  uint32_t mask = topic->out ? DDS_OFFERED_INCOMPATIBLE_QOS_STATUS | DDS_OFFERED_DEADLINE_MISSED_STATUS
                             : DDS_DATA_AVAILABLE_STATUS | DDS_REQUESTED_INCOMPATIBLE_QOS_STATUS | DDS_REQUESTED_DEADLINE_MISSED_STATUS;
  dds_return_t code = dds_set_status_mask(entity, mask);
  if (code != DDS_RETCODE_OK) return code;
  topic->entity = entity;
  code = dds_waitset_attach(waitset, entity, entity);
  (void) dds_set_guardcondition(receipts, true);
  return code;
}

/* A topic of any type, which only comes in, takes that of the first program that writes it. */
static void learn_type(unsigned index, const dds_builtintopic_endpoint_t *other, const dds_typeinfo_t *type) {
  dds_topic_descriptor_t *descriptor = NULL;
  dds_return_t code = type == NULL ? DDS_RETCODE_NO_DATA
                                   : dds_create_topic_descriptor(DDS_FIND_SCOPE_GLOBAL, participant, type, PATIENCE, &descriptor);
  if (code == DDS_RETCODE_OK) {
    code = open_topic(&topics[index], descriptor);
    (void) dds_delete_topic_descriptor(descriptor);
  }
  if (code == DDS_RETCODE_OK)
    TEXT('s', index, "%s has the type %s", topics[index].name, other->type_name);
  else if (worth_telling(++topics[index].foreign))
    TEXT('s', index, "%s: a program does not say what its type %s is: %s", topics[index].name, other->type_name, dds_strretcode(code));
}

static void look_at_endpoint(bool other_writes, dds_builtintopic_endpoint_t *other) {
  for (unsigned index = 0; index < (unsigned) topic_count; index++) {
    struct topic *topic = &topics[index];
    if (topic->out == other_writes || strcmp(topic->name, other->topic_name) != 0) continue;
    const dds_typeinfo_t *type = NULL;
    (void) dds_builtintopic_get_endpoint_type_info(other, &type);
    if (topic->entity == 0) {
      learn_type(index, other, type);
      continue;
    }
    char ours[256] = "tombolo::Event";
    if (topic->any) (void) dds_get_type_name(dds_get_topic(topic->entity), ours, sizeof ours);
    if (strcmp(ours, other->type_name) != 0 && worth_telling(++topic->foreign))
      TEXT('s', index, "nothing %s %llu programs that have %s as another type: this gateway's is %s, the last one's %s",
           topic->out ? "goes to" : "comes from", topic->foreign, topic->name, ours, other->type_name);
  }
}

static void *scout(void *unused) {
  (void) unused;
  dds_entity_t readers[2] = {dds_create_reader(participant, DDS_BUILTIN_TOPIC_DCPSSUBSCRIPTION, NULL, NULL),
                             dds_create_reader(participant, DDS_BUILTIN_TOPIC_DCPSPUBLICATION, NULL, NULL)};
  dds_entity_t news = dds_create_waitset(participant);
  dds_guid_t own;
  if (dds_get_guid(participant, &own) != DDS_RETCODE_OK) fail("the participant's name", DDS_RETCODE_ERROR);
  for (int i = 0; i < 2; i++) {
    dds_return_t code = readers[i];
    if (code > 0) code = dds_set_status_mask(readers[i], DDS_DATA_AVAILABLE_STATUS);
    if (code >= 0) code = dds_waitset_attach(news, readers[i], i);
    if (code < 0) fail("other programs can't be looked at", code);
  }
  for (;;) {
    for (int i = 0; i < 2; i++) {
      void *sample = NULL;
      dds_sample_info_t info;
      while (dds_take(readers[i], &sample, &info, 1, 1) > 0) {
        dds_builtintopic_endpoint_t *other = sample;
        if (info.valid_data && memcmp(&other->participant_key, &own, sizeof own) != 0) look_at_endpoint(i == 1, other);
        (void) dds_return_loan(readers[i], &sample, 1);
        sample = NULL;
      }
    }
    (void) dds_waitset_wait(news, NULL, 0, DDS_INFINITY);
  }
  return NULL;
}

/* ---- Start ---- */

static bool one_of(const char *text, const char *no, const char *yes, bool *is) {
  *is = strcmp(text, yes) == 0;
  return *is || strcmp(text, no) == 0;
}

static bool number(const char *text, long *is) {
  char *end;
  errno = 0;
  *is = strtol(text, &end, 10);
  return errno == 0 && end != text && *end == 0 && *is >= 0 && *is <= 1000000000;
}

static bool parse_topic(char **words, struct topic *topic) {
  topic->name = words[9];
  return one_of(words[0], "in", "out", &topic->out) && one_of(words[1], "drops", "waits", &topic->waits) &&
         one_of(words[2], "best-effort", "reliable", &topic->reliable) &&
         one_of(words[3], "volatile", "transient-local", &topic->transient_local) && number(words[4], &topic->history) &&
         number(words[5], &topic->deadline_ms) && one_of(words[6], "automatic", "manual", &topic->manual) &&
         number(words[7], &topic->lease_ms) && one_of(words[8], "event", "any", &topic->any) &&
         !(topic->out && topic->any);
}

static void start(void *(*body)(void *), void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, body, argument) != 0) fail("a thread", DDS_RETCODE_OUT_OF_RESOURCES);
}

int main(int count, char **words) {
  long domain;
  int rest = count - 2;
  if (count < 2 || !number(words[1], &domain) || rest == 0 || rest % TOPIC_ARGUMENTS != 0 || rest / TOPIC_ARGUMENTS > TOPICS_MAX) {
    fputs("tombolo-dds is started by `tombolo events gateway --dds`\n", stderr);
    return 2;
  }
  for (; topic_count < rest / TOPIC_ARGUMENTS; topic_count++) {
    if (!parse_topic(words + 2 + topic_count * TOPIC_ARGUMENTS, &topics[topic_count])) {
      fprintf(stderr, "tombolo-dds: topic %d: these arguments are not understood\n", topic_count);
      return 2;
    }
  }
  signal(SIGPIPE, SIG_IGN);
  participant = dds_create_participant((dds_domainid_t) domain, NULL, NULL);
  if (participant < 0) fail("DDS can't be joined (CYCLONEDDS_URI, the network of this domain)", participant);
  joined = dds_time();
  waitset = dds_create_waitset(participant);
  receipts = dds_create_guardcondition(participant);
  if (waitset < 0 || receipts < 0 || dds_waitset_attach(waitset, receipts, 0) != DDS_RETCODE_OK)
    fail("a waitset", DDS_RETCODE_OUT_OF_RESOURCES);
  for (int index = 0; index < topic_count; index++) {
    dds_return_t code = topics[index].any ? DDS_RETCODE_OK : open_topic(&topics[index], &tombolo_Event_desc);
    if (code != DDS_RETCODE_OK) fail(topics[index].name, code);
  }
  say('c', 0, "", 0);
  start(listen_to_gateway, NULL);
  start(write_queue, &queues[0]);
  start(write_queue, &queues[1]);
  start(scout, NULL);
  take_for_ever();
}
