/*
 * A program of Cyclone DDS that knows nothing of Tombolo.
 *   dds_peer read TOPIC             events as lines, reliable, as they come
 *   dds_peer late TOPIC             the same, and what was kept for it
 *   dds_peer write TOPIC            lines become events, reliable; `@N` is one of N bytes; "sent" when all have been acknowledged
 *   dds_peer fast TOPIC             the same, best effort
 *   dds_peer read-reading TOPIC     a reader of another type, until it is killed
 *   dds_peer write-reading TOPIC    one sample of another type; "sent" when it has been acknowledged
 * Each says "ready" when it has joined.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dds/dds.h"
#include "dds_peer.h"

static dds_entity_t checked(dds_entity_t entity) {
  if (entity < 0) {
    fprintf(stderr, "%s\n", dds_strretcode(entity));
    exit(1);
  }
  return entity;
}

static dds_entity_t open_end(const char *mode, const char *name) {
  bool reading = strstr(mode, "reading") != NULL;
  dds_entity_t participant = checked(dds_create_participant(0, NULL, NULL));
  dds_entity_t topic = checked(dds_create_topic(participant, reading ? &lab_Reading_desc : &tombolo_Event_desc, name, NULL, NULL));
  dds_qos_t *qos = dds_create_qos();
  dds_qset_reliability(qos, strcmp(mode, "fast") == 0 ? DDS_RELIABILITY_BEST_EFFORT : DDS_RELIABILITY_RELIABLE, DDS_SECS(60));
  dds_qset_history(qos, DDS_HISTORY_KEEP_ALL, 0);
  if (strcmp(mode, "late") == 0) dds_qset_durability(qos, DDS_DURABILITY_TRANSIENT_LOCAL);
  bool writes = strncmp(mode, "write", 5) == 0 || strcmp(mode, "fast") == 0;
  dds_entity_t end = checked(writes ? dds_create_writer(participant, topic, qos, NULL) : dds_create_reader(participant, topic, qos, NULL));
  dds_delete_qos(qos);
  return end;
}

static void await(dds_entity_t end, uint32_t status) {
  dds_entity_t waits = checked(dds_create_waitset(dds_get_participant(end)));
  checked(dds_set_status_mask(end, status));
  checked(dds_waitset_attach(waits, end, 0));
  checked(dds_waitset_wait(waits, NULL, 0, DDS_INFINITY));
  checked(dds_delete(waits));
}

static void read_events(dds_entity_t reader) {
  for (;;) {
    await(reader, DDS_DATA_AVAILABLE_STATUS);
    uint32_t status;
    checked(dds_take_status(reader, &status, DDS_DATA_AVAILABLE_STATUS));
    void *sample = NULL;
    dds_sample_info_t info;
    while (dds_take(reader, &sample, &info, 1, 1) > 0) {
      const tombolo_Event *event = sample;
      if (info.valid_data) printf("%.*s\n", (int) event->data._length, (const char *) event->data._buffer);
      dds_return_loan(reader, &sample, 1);
      sample = NULL;
    }
    fflush(stdout);
  }
}

static void write_line(dds_entity_t writer, char *line, uint64_t number) {
  line[strcspn(line, "\n")] = 0;
  size_t length = line[0] == '@' ? strtoul(line + 1, NULL, 10) : strlen(line);
  uint8_t *bytes = calloc(1, length + 1);
  if (line[0] != '@') memcpy(bytes, line, length);
  tombolo_Event event = {.number = number, .data = {._buffer = bytes, ._length = (uint32_t) length, ._maximum = (uint32_t) length}};
  checked(dds_write(writer, &event));
  free(bytes);
}

int main(int count, char **words) {
  if (count != 3) return 2;
  const char *mode = words[1];
  dds_entity_t end = open_end(mode, words[2]);
  puts("ready");
  fflush(stdout);
  if (strcmp(mode, "read") == 0 || strcmp(mode, "late") == 0) read_events(end);
  if (strcmp(mode, "read-reading") == 0) await(end, DDS_DATA_AVAILABLE_STATUS);
  await(end, DDS_PUBLICATION_MATCHED_STATUS);
  if (strcmp(mode, "write-reading") == 0) {
    lab_Reading reading = {.id = 7, .value = 0.5};
    checked(dds_write(end, &reading));
  } else {
    char line[4096];
    for (uint64_t number = 0; fgets(line, sizeof line, stdin) != NULL; number++) write_line(end, line, number);
  }
  checked(dds_wait_for_acks(end, DDS_SECS(60)));
  puts("sent");
  return 0;
}
