#include "data/shards/grouping.h"

#include <fmt/format.h>

namespace fvlm {

MemberName split_name(std::string_view name) {
  size_t base = name.rfind('/') + 1; // npos + 1 is 0
  size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base || dot + 1 == name.size()) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

void Grouping::tell(uint64_t offset, std::string reason) {
  ++damages_;
  if (told_.size() < most_told) told_.push_back({offset, std::move(reason)});
}

void Grouping::close() {
  if (!open_.key.empty() && !repeated_) {
    give_(open_);
    keys_.insert(open_.key);
  }
  open_ = {};
  names_.clear();
  repeated_ = false;
}

void Grouping::add(TarItem item) {
  auto [key, rest] = split_name(item.name);
  if (!item.wrong.empty()) {
    std::string reason = item.name.empty() || item.wrong.find(item.name) != std::string::npos
                             ? item.wrong
                             : fmt::format("'{}': {}", item.name, item.wrong);
    if (!key.empty() && key == open_.key && open_.damage.empty()) {
      open_.damage = reason;
    } else if (!key.empty() && key != open_.key) {
      lost_key_ = key;
      lost_reason_ = reason;
    }
    return tell(item.header, std::move(reason));
  }
  if (key.empty())
    return tell(item.header, fmt::format("'{}' is named as no sample's part is: KEY.json, KEY.jpg, ...", item.name));
  if (key != open_.key) {
    close();
    open_.key = key;
    repeated_ = keys_.contains(open_.key);
    if (repeated_) tell(item.header, fmt::format("the key '{}' stands a second time in this shard", key));
    if (lost_key_ == key) open_.damage = lost_reason_;
    lost_key_.clear();
  }
  if (repeated_) return;
  if (!names_.emplace(rest).second)
    return tell(item.header, fmt::format("'{}' stands a second time in its sample", item.name));
  open_.members.push_back({std::string(rest), item.offset, item.size});
}

void Grouping::finish() {
  close();
}

} // namespace fvlm
