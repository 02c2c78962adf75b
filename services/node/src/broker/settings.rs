//! Settings of services, from the words of a topology to those of the service's protocol.

use topology::{CacheMode, ChannelMode, FrameFormat, LocationKind, Service, Settings};
use wire::{camera, control, directory, events, files, location};

/// The settings of `service` for its server.
pub(crate) fn of_service(service: &Service) -> serde_json::Result<serde_json::Value> {
    match &service.settings {
        Settings::Directory(settings) => serde_json::to_value(of_directory(settings)),
        // Of a socket: the channels between its relays.
        Settings::Channel(_) | Settings::Socket(_) => serde_json::to_value(service.channel().map(of_channel)),
        Settings::Coordination(settings) => Ok(serde_json::json!({ "grace_ms": settings.grace_ms })),
        Settings::Events(settings) => serde_json::to_value(of_events(settings)),
        Settings::Camera(settings) => serde_json::to_value(of_camera(settings)),
        Settings::Location(settings) => serde_json::to_value(of_location(settings)),
        Settings::Files(settings) => serde_json::to_value(of_files(settings)),
        Settings::Program(settings) => Ok(serde_json::Value::Object(settings.table.clone())),
    }
}

fn of_events(settings: &topology::EventsSettings) -> events::Settings {
    let channel = |it: &topology::EventChannel| events::ChannelSettings {
        buffer_bytes: it.buffer_bytes,
        event_bytes: it.event_bytes,
        history: u64::from(it.history),
        wait_ms: it.wait_ms,
        format: it.format.clone(),
    };
    let channels = settings.channels.iter();
    events::Settings {
        memory_bytes: settings.memory_bytes,
        memory_per_domain: settings.memory_per_domain,
        channels_per_domain: settings.channels_per_domain,
        sessions_per_domain: settings.sessions_per_domain,
        made: channel(&settings.made),
        channels: channels
            .map(|(name, it)| events::NamedChannel {
                name: name.as_str().to_owned(),
                settings: channel(it),
                subscribers: it.subscribers.iter().map(of_subscriber).collect(),
            })
            .collect(),
    }
}

fn of_subscriber((domain, filter): (&topology::Name, &topology::EventFilter)) -> events::GivenFilter {
    let judge = match filter {
        topology::EventFilter::Filter(text) => events::GivenJudge::Filter(text.clone()),
        topology::EventFilter::Module(path) => {
            events::GivenJudge::Module(path.to_string_lossy().into_owned())
        }
    };
    events::GivenFilter { domain: domain.as_str().to_owned(), judge }
}

fn of_channel(settings: &topology::ChannelSettings) -> control::ChannelSettings {
    control::ChannelSettings {
        ring_bytes: settings.ring_bytes,
        mode: match settings.mode {
            ChannelMode::Messages => control::ChannelMode::Messages,
            ChannelMode::Stream => control::ChannelMode::Stream,
        },
        max_channels: settings.max_channels,
        channels_per_domain: settings.channels_per_domain,
    }
}

fn of_camera(settings: &topology::CameraSettings) -> camera::Settings {
    let cameras = settings.cameras.iter().map(|camera| camera::Camera {
        name: camera.name.as_str().to_owned(),
        file: camera.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
        format: match camera.format {
            FrameFormat::Yuyv => camera::Format::Yuyv,
            FrameFormat::Grey => camera::Format::Grey,
        },
        width: camera.width,
        height: camera.height,
        rate: camera.rate,
    });
    camera::Settings { cameras: cameras.collect(), sessions_per_domain: settings.sessions_per_domain }
}

fn of_files(settings: &topology::FilesSettings) -> files::Settings {
    files::Settings {
        store: settings.store.as_ref().map(|store| store.to_string_lossy().into_owned()),
        bytes: settings.bytes,
        inodes: settings.inodes,
    }
}

fn of_location(settings: &topology::LocationSettings) -> location::Settings {
    let sources = settings.sources.iter().map(|source| location::Source {
        name: source.name.as_str().to_owned(),
        kind: match source.kind {
            LocationKind::Nmea => location::SourceKind::Nmea,
            LocationKind::Signals => location::SourceKind::Signals,
        },
        path: source.path.to_string_lossy().into_owned(),
        survey: source.survey.as_ref().map(|survey| survey.to_string_lossy().into_owned()),
        range_error_m: source.range_error_m,
        power_mw: source.power_mw,
    });
    location::Settings {
        sources: sources.collect(),
        accuracy_m: settings.accuracy_m,
        hold_ms: settings.hold_ms,
        timeout_ms: settings.timeout_ms,
        gpsd_port: settings.gpsd_port,
        nmea_port: settings.nmea_port,
    }
}

fn of_directory(settings: &topology::DirectorySettings) -> directory::Settings {
    let (mode, share) = match &settings.cache.mode {
        CacheMode::None => (directory::CacheMode::None, Vec::new()),
        CacheMode::Private => (directory::CacheMode::Private, Vec::new()),
        CacheMode::Shared(domains) => {
            (directory::CacheMode::Shared, domains.iter().map(|name| name.as_str().to_owned()).collect())
        }
    };
    directory::Settings {
        upstream: settings.upstream.clone(),
        timeout_ms: u32::try_from(settings.timeout_ms).unwrap_or(u32::MAX),
        retries: settings.retries,
        search: settings.search.clone(),
        sessions_per_domain: settings.sessions_per_domain,
        outstanding_per_domain: settings.outstanding_per_domain,
        cache: directory::CacheSettings {
            mode,
            share,
            entries: settings.cache.entries,
            negative_ttl_ms: settings.cache.negative_ttl_ms,
            max_ttl_ms: settings.cache.max_ttl_ms,
        },
        names: settings
            .names
            .iter()
            .map(|(domain, names)| (domain.as_str().to_owned(), names.clone()))
            .collect(),
    }
}
