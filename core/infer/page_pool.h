// PagePool: which pages of the KV cache are in use, by how many sequences, and which are kept because a later prompt
// may begin with what is in them. It knows numbers of pages, not their tensors.
#pragma once
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace fvlm::infer {

class PagePool {
 public:
  // Pages 1 to `pages`; page 0 is for padding (model::KvPages).
  explicit PagePool(int64_t pages);

  int64_t total() const { return std::ssize(pages_) - 1; }
  int64_t free() const { return std::ssize(free_); }      // without content that could be used again
  int64_t cached() const { return std::ssize(cached_); }  // with such content, of no sequence
  int64_t available() const { return free() + cached(); } // for allocate()
  int64_t references(int32_t page) const { return pages_.at(static_cast<size_t>(page)).references; }

  // A page with one reference: a free one, or else the cached one that was released first, whose content is forgotten.
  std::optional<int32_t> allocate();
  // Adds a reference to a page that is in use or cached.
  void share(int32_t page);
  // Takes one away. A page that nobody has any more is cached if it was published, else free.
  void release(int32_t page);

  // Lets find() return this page, which is full, under a key that says all about its content. Where another page has
  // the key already, nothing changes.
  void publish(int32_t page, const std::string& key);
  std::optional<int32_t> find(const std::string& key) const;

 private:
  struct Page {
    int64_t references = 0;
    std::string key;                      // empty: not published
    std::list<int32_t>::iterator waiting; // in cached_, where it is
  };
  Page& at(int32_t page) { return pages_.at(static_cast<size_t>(page)); }

  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  std::list<int32_t> cached_; // the one that was released first is at the front
  std::unordered_map<std::string, int32_t> published_;
};

} // namespace fvlm::infer
