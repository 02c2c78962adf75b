//! The pairs that there are, each at the place of its slot: who names one has it at once.

use crate::pairs::Entry;

/// Slots are checked before they come here: the places are as many as both hellos allow, two for
/// each pair.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Option<Box<Entry>>>,
    count: usize,
}

fn place(slot: u32) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX)
}

fn slot(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

impl Table {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn get(&self, slot: u32) -> Option<&Entry> {
        self.places.get(place(slot))?.as_deref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Entry> {
        self.places.get_mut(place(slot))?.as_deref_mut()
    }

    /// By slot, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> + '_ {
        let places = self.places.iter().enumerate();
        places.filter_map(|(place, entry)| Some((slot(place), entry.as_deref()?)))
    }

    /// The same.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Entry)> + '_ {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(place, entry)| Some((slot(place), entry.as_deref_mut()?)))
    }

    pub fn insert(&mut self, slot: u32, entry: Entry) {
        let place = place(slot);
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        if let Some(found) = self.places.get_mut(place) {
            self.count += usize::from(found.is_none());
            *found = Some(Box::new(entry));
        }
    }

    pub fn remove(&mut self, slot: u32) {
        let taken = self.places.get_mut(place(slot)).and_then(Option::take);
        self.count -= usize::from(taken.is_some());
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
