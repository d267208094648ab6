#include "data/shards/grouping.h"

#include <fmt/format.h>

namespace fvlm {

MemberName split_name(std::string_view name) {
  size_t base = name.rfind('/') + 1; // npos + 1 is 0
  size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base || dot + 1 == name.size()) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

void Grouping::report(uint64_t offset, std::string reason) {
  ++damages_;
  if (reported_.size() < max_reported) reported_.push_back({offset, std::move(reason)});
}

void Grouping::close() {
  if (!open_.key.empty() && !duplicate_key_) {
    for (const Lost& lost : lost_) {
      // The name may be what is damaged: a part that is there was not lost.
      if (!open_.damage.empty() || lost.key != open_.key || names_.contains(lost.rest)) continue;
      open_.damage = lost.reason;
    }
    callback_(open_);
    keys_.insert(open_.key);
  }
  lost_.erase(lost_.begin(), lost_.begin() + static_cast<ptrdiff_t>(lost_before_last_member_));
  lost_before_last_member_ = 0;
  open_ = {};
  names_.clear();
  duplicate_key_ = false;
}

void Grouping::add(TarEntry item) {
  auto [key, rest] = split_name(item.name);
  if (!item.wrong.empty()) {
    std::string reason = item.name.empty() || item.wrong.find(item.name) != std::string::npos
                             ? item.wrong
                             : fmt::format("'{}': {}", item.name, item.wrong);
    if (!key.empty() && lost_.size() < max_reported) lost_.push_back({std::string(key), std::string(rest), reason});
    return report(item.header, std::move(reason));
  }
  if (key.empty())
    return report(item.header, fmt::format("'{}' is named as no sample's part is: KEY.json, KEY.jpg, ...", item.name));
  if (key != open_.key) {
    close();
    open_.key = key;
    duplicate_key_ = keys_.contains(open_.key);
    if (duplicate_key_) report(item.header, fmt::format("the key '{}' stands a second time in this shard", key));
  }
  lost_before_last_member_ = lost_.size();
  if (duplicate_key_) return;
  if (!names_.emplace(rest).second)
    return report(item.header, fmt::format("'{}' stands a second time in its sample", item.name));
  open_.members.push_back({std::string(rest), item.offset, item.size});
}

void Grouping::finish() {
  close();
}

} // namespace fvlm
