#include "data/shards/tar_scan.h"

#include "data/shards/tar_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace fvlm {
namespace {

constexpr uint64_t window_size = 4096; // what is read around a header: small members lie within
constexpr uint64_t largest_search = uint64_t{1} << 20;
constexpr uint64_t most_in_record = uint64_t{1} << 20; // bytes of a long name or of pax records

uint64_t padded(uint64_t size) {
  return (size + tar_block - 1) / tar_block * tar_block;
}

// What a header of this type is, if no sample has a use for it.
const char* unusable(char type) {
  switch (type) {
  case '0':
  case '7':
    return nullptr;
  case '1':
    return "a hard link, which is not followed";
  case '2':
    return "a symbolic link, which is not followed";
  case '3':
  case '4':
    return "a device";
  case '6':
    return "a pipe";
  case 'S':
    return "a sparse file, which is not supported";
  default:
    return "no regular file";
  }
}

bool has_data(char type) {
  return type < '1' || type > '6';
}

class Scan {
 public:
  Scan(const RetryingFile& file, const std::function<void(TarEntry&&)>& callback) : file_(file), callback_(callback) {}

  void run() {
    bool ended = false;
    uint64_t at = 0;
    while (file_.size() - at >= tar_block) {
      TarBlock block = block_at(at);
      if (is_zero(block)) {
        uint64_t behind = search(at, [](TarBlock other) { return !is_zero(other); });
        ended = behind == file_.size();
        if (ended) break;
        // Archives written one behind the other have zeros between them; so has one that lost a sector.
        auto blocks = (behind - at) / tar_block;
        at = after_damage(at, behind, "", fmt::format("{} blocks of zeros where a header should be", blocks));
      } else if (auto header = read_tar_header(block)) {
        at = member(at, std::move(*header));
      } else {
        at = after_damage(at, at + tar_block, readable_name(block), "a header with a wrong checksum");
      }
    }
    confirm();
    if (!records_wrong_.empty()) wrong(extra_begin_.value_or(at), "", records_wrong_);
    if (!ended && !ends_with_zeros())
      wrong(file_.size(), "", "the archive ends without its end mark: it was cut short");
  }

 private:
  TarBlock block_at(uint64_t at) {
    if (at < window_at_ || at + tar_block > window_at_ + window_.size()) {
      window_.resize(std::min(window_size, file_.size() - at));
      window_at_ = at;
      file_.read(at, window_);
    }
    return TarBlock(window_.data() + (at - window_at_), tar_block);
  }

  // The last member's size is believed once a header, or the end, stands where it says.
  void confirm() {
    if (pending_) callback_(std::move(*pending_));
    pending_.reset();
  }

  void wrong(uint64_t at, std::string name, std::string reason) {
    callback_({.header = at, .name = std::move(name), .wrong = std::move(reason)});
  }

  // The first block from `from` on for which `wanted` holds; the file's size: none.
  template <class Wanted>
  uint64_t search(uint64_t from, Wanted&& wanted) {
    std::vector<std::byte> chunk;
    for (uint64_t step = window_size; file_.size() - from >= tar_block; step = std::min(2 * step, largest_search)) {
      chunk.resize(std::min(step, (file_.size() - from) / tar_block * tar_block));
      file_.read(from, chunk);
      for (uint64_t at = 0; at < chunk.size(); at += tar_block)
        if (wanted(TarBlock(chunk.data() + at, tar_block))) return from + at;
      from += chunk.size();
    }
    return file_.size();
  }

  // As a whole archive does, whose last member is damaged.
  bool ends_with_zeros() {
    uint64_t blocks = file_.size() / tar_block;
    return blocks >= 2 && is_zero(block_at((blocks - 1) * tar_block));
  }

  // No good header stands at `at`, and none before `behind`. Where one lies among what seem to be the data of the
  // member before, that member's size is no truth. A size that leads to another header is believed, whatever it skips.
  uint64_t after_damage(uint64_t at, uint64_t behind, std::string name, std::string reason) {
    uint64_t found = search(pending_ ? pending_->offset : behind, is_surely_header);
    if (pending_ && found < at) {
      pending_->wrong =
          fmt::format("it says that it has {} bytes, and another member begins among them", pending_->size);
      confirm();
    } else {
      confirm();
      wrong(at, std::move(name), std::move(reason));
    }
    lost_ = true;
    forget_records();
    return found;
  }

  void forget_records() {
    long_name_.reset();
    records_ = {};
    records_wrong_.clear();
    extra_begin_.reset();
  }

  // The member whose good header stands at `at`; gives where the next header should be.
  uint64_t member(uint64_t at, TarHeader header) {
    confirm();
    uint64_t data = at + tar_block;
    if (is_record(header.type)) return record(at, header);
    if (header.more_map) data = behind_map(data);

    std::string name = records_.path ? *records_.path : long_name_ ? *long_name_ : header.name;
    TarEntry item{.header = extra_begin_.value_or(at), .offset = data, .size = records_.size.value_or(header.size)};
    if (!header.wrong.empty() && !records_.size)
      item.wrong = fmt::format("it has {}", header.wrong);
    else if (!records_wrong_.empty())
      item.wrong = records_wrong_;
    else if (lost_ && header.full_name && !records_.path && !long_name_)
      item.wrong = "its name goes on in a record that is lost";
    bool bad_size = !header.wrong.empty() && !records_.size;
    bool sparse = records_.sparse;
    lost_ = false;
    forget_records();

    std::string name_wrong;
    item.name = plain_name(name, name_wrong);
    if (!name_wrong.empty()) item.name.clear();
    if (item.wrong.empty()) item.wrong = name_wrong;
    if (const char* what = sparse ? unusable('S') : unusable(header.type); what && item.wrong.empty())
      item.wrong = fmt::format("'{}' is {}", item.name, what);

    uint64_t size = has_data(header.type) ? item.size : 0;
    bool outside = !bad_size && size > file_.size() - std::min(data, file_.size());
    if (outside && item.wrong.empty())
      item.wrong = fmt::format("it says that it has {} bytes, and the file ends {} bytes after it", item.size,
                               file_.size() - std::min(data, file_.size()));
    bool folder = header.type == '5' || (header.type == '0' && name.ends_with('/'));
    if (bad_size || outside) { // the name is good, the size is not: the next header must be looked for
      callback_(std::move(item));
      return search(data, is_surely_header);
    }
    if (!folder) pending_ = std::move(item);
    return std::min(data + padded(size), file_.size());
  }

  static bool is_record(char type) { return type == 'x' || type == 'g' || type == 'L' || type == 'K'; }

  // A header that only says more about the next one.
  uint64_t record(uint64_t at, const TarHeader& header) {
    uint64_t data = at + tar_block;
    if (!extra_begin_ && header.type != 'g') extra_begin_ = at;
    if (!header.wrong.empty() || header.size > most_in_record || header.size > file_.size() - data) {
      return damaged_record(data);
    }
    std::vector<std::byte> bytes(header.size);
    file_.read(data, bytes);
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (header.type == 'L') {
      long_name_ = text.substr(0, text.find('\0'));
      if (long_name_->size() + 1 < text.size()) return damaged_record(data);
    } else if (header.type == 'x') {
      auto read = read_pax(text);
      if (!read) return damaged_record(data);
      records_ = std::move(*read);
    }
    return std::min(data + padded(header.size), file_.size());
  }

  // Its size may be no truth either: the next header is looked for.
  uint64_t damaged_record(uint64_t data) {
    records_wrong_ = "the record with its name or size is damaged";
    return search(data, is_surely_header);
  }

  uint64_t behind_map(uint64_t at) {
    constexpr size_t more = 504; // of each block: whether another one follows
    while (file_.size() - at >= tar_block) {
      bool last = block_at(at)[more] == std::byte{0};
      at += tar_block;
      if (last) break;
    }
    return at;
  }

  const RetryingFile& file_;
  const std::function<void(TarEntry&&)>& callback_;
  std::vector<std::byte> window_;
  uint64_t window_at_ = 0;
  std::optional<TarEntry> pending_;
  bool lost_ = false; // something was lost just before
  // What records say of the member that follows them.
  std::optional<std::string> long_name_;
  PaxRecords records_;
  std::string records_wrong_;
  std::optional<uint64_t> extra_begin_;
};

} // namespace

void scan_tar(const RetryingFile& file, const std::function<void(TarEntry&&)>& callback) {
  Scan(file, callback).run();
}

} // namespace fvlm
