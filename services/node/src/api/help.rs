//! The meaning of each family of metrics, in the words of its `# HELP` line.

/// Families that the daemon itself tells, in the order of their names.
pub(super) const FAMILIES: &[(&str, &str)] = &[
    (
        "tombolo_adaptation_last_commit_seconds",
        "Time in which the last adaptation was written down, in seconds.",
    ),
    ("tombolo_adaptation_last_decide_seconds", "Time in which the last adaptation was decided, in seconds."),
    ("tombolo_adaptation_last_effect_seconds", "Time until the kernel had the last adaptation, in seconds."),
    ("tombolo_adaptations_refused_total", "Adaptations that were refused."),
    ("tombolo_adaptations_total", "Adaptations that were made."),
    ("tombolo_domain_cpu_seconds_total", "Processor time that the domain has used, in seconds."),
    ("tombolo_domain_memory_bytes", "Memory that the domain uses, in bytes."),
    ("tombolo_domain_processes", "Tasks of the domain: processes and threads."),
    ("tombolo_domain_restarts_total", "Restarts of the domain by its policy."),
    ("tombolo_domain_running", "1 while the domain runs, 0 otherwise."),
    ("tombolo_endpoint_binds_total", "Binds of the endpoint."),
    ("tombolo_endpoint_bound", "1 while a program has bound the endpoint, 0 otherwise."),
    ("tombolo_endpoint_buffers", "Buffers of the endpoint."),
    ("tombolo_endpoint_bytes", "Memory of the endpoint's buffers, in bytes."),
    ("tombolo_endpoint_grants", "Buffers that the endpoint has granted to peers."),
    ("tombolo_endpoint_peers", "Peers of the endpoint."),
    ("tombolo_frontend_restarts_total", "Restarts of the domain's frontend."),
    ("tombolo_guest_memory_bytes", "Memory of the guest's machine, in bytes."),
    ("tombolo_guest_running", "1 while the guest's command runs, 0 otherwise."),
    ("tombolo_ipc_binds_total", "Binds of endpoints of the distributed container."),
    ("tombolo_ipc_buffers", "Buffers of endpoints of the distributed container."),
    ("tombolo_ipc_buffers_limit", "Most buffers of endpoints of the distributed container."),
    ("tombolo_ipc_bytes", "Memory of endpoints of the distributed container, in bytes."),
    ("tombolo_ipc_bytes_limit", "Most memory of endpoints of the distributed container, in bytes."),
    ("tombolo_ipc_endpoints", "Endpoints of the distributed container."),
    ("tombolo_ipc_endpoints_limit", "Most endpoints of the distributed container."),
    ("tombolo_ipc_grants", "Granted buffers of the distributed container."),
    ("tombolo_ipc_grants_limit", "Most granted buffers of the distributed container."),
    ("tombolo_ipc_introductions_total", "Pairs of endpoints that were introduced to each other."),
    ("tombolo_ipc_pairs", "Pairs of endpoints of the distributed container."),
    ("tombolo_ipc_pairs_limit", "Most pairs of endpoints of the distributed container."),
    ("tombolo_link_bytes_in_total", "Bytes of messages that came over the link from the node."),
    ("tombolo_link_bytes_out_total", "Bytes of messages that went over the link to the node."),
    ("tombolo_link_messages_in_total", "Messages that came over the link from the node."),
    ("tombolo_link_messages_out_total", "Messages that went over the link to the node."),
    ("tombolo_link_pairs", "Pairs of ends that use the link to the node."),
    ("tombolo_link_round_trip_seconds", "Round trip of the link to the node, in seconds."),
    ("tombolo_link_up", "1 while the link to the node is up, 0 otherwise."),
    ("tombolo_node_info", "1, with the version of the daemon."),
    ("tombolo_node_uptime_seconds", "Time that the daemon has run, in seconds."),
    ("tombolo_proxy_restarts_total", "Restarts of the proxy to the node."),
    (
        "tombolo_reservation_caveats",
        "Caveats of the reservation: how what is kept differs from what was asked.",
    ),
    ("tombolo_reservation_cpu_budget_seconds", "Processor time that is promised in each period, in seconds."),
    ("tombolo_reservation_cpu_period_seconds", "Period of the promised processor time, in seconds."),
    (
        "tombolo_reservation_cpu_seconds_total",
        "Processor time that was used under the reservation, in seconds.",
    ),
    ("tombolo_reservation_in_force", "1 while the reservation is kept, 0 otherwise."),
    ("tombolo_reservation_info", "1, with the mechanism that keeps the reservation."),
    ("tombolo_reservation_late_slots_total", "Slots of the dispatch table that began late."),
    ("tombolo_reservation_memory_bytes", "Memory that is used under the reservation, in bytes."),
    ("tombolo_reservation_memory_pressure_seconds_total", "Time spent waiting for memory, in seconds."),
    ("tombolo_reservation_network_between_bytes_total", "Bytes sent to other domains of the node."),
    (
        "tombolo_reservation_network_received_bytes_total",
        "Bytes that the reservation's domains received over the link.",
    ),
    (
        "tombolo_reservation_network_sent_bytes_total",
        "Bytes that the reservation's domains sent over the link.",
    ),
    ("tombolo_reservation_offered_seconds_total", "Time in the slots of the dispatch table, in seconds."),
    ("tombolo_reservation_response_seconds", "Worst-case response time by the analysis, in seconds."),
    ("tombolo_reservation_slots_total", "Slots of the dispatch table that have begun."),
    ("tombolo_reservation_suspended", "1 while the reservation is suspended, 0 otherwise."),
    ("tombolo_reservation_throttled_periods_total", "Periods in which more was wanted than is promised."),
    ("tombolo_reservation_worst_late_seconds", "Longest delay of a slot's begin, in seconds."),
    ("tombolo_service_channels", "Channels of the service's server to domains."),
    ("tombolo_service_channels_opened_total", "Channels that were opened to the service's server."),
    ("tombolo_service_consumer_channels", "Channels of a domain to the service's server."),
    (
        "tombolo_service_generation",
        "Number of the service's present server: one more with each that took over.",
    ),
    ("tombolo_service_info", "1, with the kind of the service and the domain of its server."),
    ("tombolo_service_up", "1 while the service has a server, 0 otherwise."),
    ("tombolo_socket_connections", "Open connections of a domain to the socket service."),
    ("tombolo_socket_connections_opened_total", "Connections of a domain that were opened."),
    ("tombolo_socket_connections_refused_total", "Connections of a domain that were refused."),
    ("tombolo_socket_connections_reset_total", "Connections of a domain that were reset."),
    ("tombolo_socket_received_bytes_total", "Bytes that a domain received from the socket service."),
    ("tombolo_socket_sent_bytes_total", "Bytes that a domain sent to the socket service."),
    ("tombolo_target_asked", "The target of a file of a service, in seconds or, of a rate, in a second."),
    ("tombolo_target_found", "The value that was found for the target, in the same unit."),
    ("tombolo_target_kept", "1 while the target is kept, 0 otherwise."),
    ("tombolo_target_misses_total", "How often the target began to be missed."),
];

/// The families that a frontend or a server tells of itself.
const TOLD: [(&str, &str); 2] = [
    ("tombolo_frontend_", "A number of the state of the domain's frontend; the name ends with its unit."),
    (
        "tombolo_service_",
        "A number of the state that the service's server tells; the name ends with its unit.",
    ),
];

/// The words of the family's `# HELP` line.
pub(super) fn of(family: &str) -> Option<&'static str> {
    let exact =
        FAMILIES.binary_search_by(|(name, _)| (*name).cmp(family)).ok().and_then(|at| FAMILIES.get(at));
    exact.or_else(|| TOLD.iter().find(|(prefix, _)| family.starts_with(prefix))).map(|(_, help)| *help)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/metrics.md");
    const DASHBOARD: &str = include_str!("../../../../packaging/grafana/tombolo.json");
    const ALERTS: &str = include_str!("../../../../packaging/prometheus/tombolo.rules.yml");

    /// The families that a text names.
    fn named(text: &str) -> Vec<&str> {
        let starts = text.match_indices("tombolo_").map(|(at, _)| &text[at..]);
        starts.map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_lowercase()).next().unwrap()).collect()
    }

    #[test]
    fn each_family_stands_on_the_page_in_the_order_of_the_search() {
        assert!(FAMILIES.is_sorted_by(|(one, _), (next, _)| one < next));
        for (family, help) in FAMILIES {
            assert!(PAGE.contains(&format!("| `{family}` | {help} |")), "{family} is not in docs/metrics.md");
            assert!(!help.contains('\\') && !help.contains('\n') && help.ends_with('.'), "{help}");
        }
    }

    #[test]
    fn the_dashboard_and_the_alerts_ask_for_what_there_is() {
        for text in [DASHBOARD, ALERTS] {
            let asked = named(text);
            assert!(asked.len() > 9, "{asked:?}");
            for family in asked {
                assert!(FAMILIES.iter().any(|(name, _)| *name == family), "nobody tells {family}");
            }
        }
    }
}
