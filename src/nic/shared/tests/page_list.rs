//! Page lists.

use crate::shared::PageList;

#[test]
fn page_list_holds_exactly_its_capacity() {
    let list = PageList::new(3).unwrap();
    assert!((0..3).all(|page| list.set(page, u64::from(page) * 4096 + 7)));
    assert!(!list.set(3, 9) && !list.set(u32::MAX, 9));
    assert_eq!([0, 2, 3].map(|page| list.page(page)), [Some(7), Some(2 * 4096 + 7), None]);
}
