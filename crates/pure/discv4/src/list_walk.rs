use crate::{
    Enr,
    node_list::{EntryName, ListEntry, ListError, ListRoot, ListUrl},
};
use rand::{Rng, RngCore};
use std::collections::{HashSet, VecDeque};

/// Lists followed, those given and those linked to.
const LISTS_MAX: usize = 8;
/// Entries of one list that are asked for.
const ENTRIES_MAX: usize = 1 << 16;
/// Entries known by name and not yet asked for, of one list.
const PENDING_MAX: usize = 1 << 13;

/// Walks node lists in random order, one question to DNS after the other, so that many nodes with
/// the same list begin with different entries of it. No I/O: the caller asks. Bounded whatever the
/// lists hold: eight lists, 65,536 entries of each.
#[derive(Debug)]
pub struct ListWalk {
    lists: Vec<List>,
    /// Those whose turn it is, in order; each gets its turn.
    turns: VecDeque<usize>,
}

#[derive(Debug)]
struct List {
    url: ListUrl,
    seq: Option<u64>,
    top: Option<(EntryName, EntryName)>,
    /// The root was asked for in this walk.
    begun: bool,
    pending: Vec<EntryName>,
    seen: HashSet<EntryName>,
}

/// One question to DNS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListQuestion {
    list: usize,
    /// `None` for the root.
    name: Option<EntryName>,
    /// The domain whose TXT records are wanted.
    pub domain: String,
}

impl ListWalk {
    /// A walk over these lists.
    pub fn new(urls: impl IntoIterator<Item = ListUrl>) -> Self {
        let mut walk = Self { lists: Vec::new(), turns: VecDeque::new() };
        urls.into_iter().for_each(|url| walk.add(url));
        walk
    }

    fn add(&mut self, url: ListUrl) {
        if self.lists.len() < LISTS_MAX && self.lists.iter().all(|list| list.url != url) {
            self.turns.push_back(self.lists.len());
            let (pending, seen) = (Vec::new(), HashSet::new());
            self.lists.push(List { url, seq: None, top: None, begun: false, pending, seen });
        }
    }

    /// Asks for the roots once more: what is new since then is walked, what was seen is not. To be
    /// called when [`Self::next`] has nothing left, and then seldom.
    pub fn restart(&mut self) {
        self.lists.iter_mut().for_each(|list| list.begun = false);
    }

    /// The next question, `None` when all entries have been asked for.
    pub fn next(&mut self, rng: &mut dyn RngCore) -> Option<ListQuestion> {
        for _ in 0..self.turns.len() {
            self.turns.rotate_left(1);
            let index = *self.turns.back()?;
            let list = &mut self.lists[index];
            if !list.begun {
                list.begun = true;
                let domain = list.url.domain().to_owned();
                return Some(ListQuestion { list: index, name: None, domain });
            }
            if !list.pending.is_empty() {
                let name = list.pending.swap_remove(rng.random_range(0..list.pending.len()));
                let domain = name.domain(&list.url);
                return Some(ListQuestion { list: index, name: Some(name), domain });
            }
        }
        None
    }

    /// Takes the TXT records that stand at the question's domain, in any order, and gives the node
    /// that is there, if one is.
    ///
    /// # Errors
    /// [`ListError`] when none of them is what belongs there. That is not asked for again.
    pub fn answer(
        &mut self,
        question: &ListQuestion,
        texts: &[impl AsRef<str>],
    ) -> Result<Option<Enr>, ListError> {
        let texts = texts.iter().map(AsRef::as_ref);
        let Some(list) = self.lists.get_mut(question.list) else { return Ok(None) };
        let Some(name) = &question.name else {
            let root = first_ok(texts, |text| ListRoot::parse(text, &list.url))?;
            list.take_root(root);
            return Ok(None);
        };
        match first_ok(texts, |text| ListEntry::parse(text, name))? {
            ListEntry::Node(enr) => return Ok(Some(enr)),
            ListEntry::Branch(names) => names.into_iter().for_each(|name| list.want(name)),
            ListEntry::Link(url) => self.add(url),
        }
        Ok(None)
    }
}

impl List {
    fn take_root(&mut self, root: ListRoot) {
        let top = (root.nodes, root.links);
        // An older root is one that somebody kept.
        if self.seq.is_some_and(|seq| root.seq < seq) || self.top.as_ref() == Some(&top) {
            return;
        }
        self.seq = Some(root.seq);
        self.pending.clear();
        if self.seen.len() >= ENTRIES_MAX {
            self.seen.clear();
        }
        // A subtree that did not change keeps its name, so what was seen need not be seen again.
        self.want(top.1.clone());
        self.want(top.0.clone());
        self.top = Some(top);
    }

    fn want(&mut self, name: EntryName) {
        let room = self.pending.len() < PENDING_MAX && self.seen.len() < ENTRIES_MAX;
        if room && self.seen.insert(name.clone()) {
            self.pending.push(name);
        }
    }
}

/// The first that can be read; else what is wrong with the first that is of the kind.
fn first_ok<'a, T>(
    texts: impl Iterator<Item = &'a str>,
    read: impl Fn(&str) -> Result<T, ListError>,
) -> Result<T, ListError> {
    let mut wrong = ListError::Unknown;
    for text in texts {
        match read(text) {
            Ok(value) => return Ok(value),
            Err(error) if wrong == ListError::Unknown => wrong = error,
            Err(_) => {}
        }
    }
    Err(wrong)
}
