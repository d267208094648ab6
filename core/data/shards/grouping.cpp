#include "data/shards/grouping.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace fvlm {
namespace {

constexpr std::string_view twice = "stands a second time", no_part = "is named as no sample's part is";

} // namespace

MemberName split_name(std::string_view name) {
  size_t base = name.rfind('/') + 1; // npos + 1 is 0
  size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base || dot + 1 == name.size()) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::string sample_name(const std::string& key) {
  for (const std::string_view begin : {"line ", "item ", "row "})
    if (key.starts_with(begin)) return key;
  return fmt::format("sample '{}'", key);
}

bool is_about_names(const Damage& damage) {
  return damage.reason.find(twice) != std::string::npos || damage.reason.find(no_part) != std::string::npos;
}

// A run of adjacent members is taken whole or, if one of its names is there from an earlier run, not at all: it is a
// second sample with the same key then, and its other members do not belong to the first.
ShardSample Grouping::complete(Group& group) {
  ShardSample sample{.key = group.key};
  std::unordered_set<std::string> names;
  const auto& parts = group.parts;
  for (size_t begin = 0; begin < parts.size();) {
    size_t end = begin + 1;
    while (end < parts.size() && !parts[end].begins_run) ++end;
    const auto is_earlier = [&](const Part& part) { return names.contains(part.member.name); };
    const auto first = parts.begin() + static_cast<ptrdiff_t>(begin),
               last = parts.begin() + static_cast<ptrdiff_t>(end);
    if (std::any_of(first, last, is_earlier)) {
      report(first->header, fmt::format("the key '{}' {} in this shard", group.key, twice));
      begin = end;
      continue;
    }
    for (; begin < end; ++begin) {
      const Part& part = parts[begin];
      if (names.insert(part.member.name).second)
        sample.members.push_back(part.member);
      else
        report(part.header, fmt::format("'{}.{}' {} in its sample", group.key, part.member.name, twice));
    }
  }
  if (const auto lost = lost_.find(group.key); lost != lost_.end()) {
    // The name may be what is damaged: a part that is there was not lost.
    const auto found = std::ranges::find_if(lost->second, [&](const Lost& each) { return !names.contains(each.rest); });
    if (found != lost->second.end()) sample.damage = found->reason;
  }
  return sample;
}

void Grouping::add(TarEntry item) {
  auto [key, rest] = split_name(item.name);
  if (!item.wrong.empty()) {
    std::string reason = item.name.empty() || item.wrong.find(item.name) != std::string::npos
                             ? item.wrong
                             : fmt::format("'{}': {}", item.name, item.wrong);
    if (!key.empty()) lost_[std::string(key)].push_back({std::string(rest), reason});
    return report(item.header, std::move(reason));
  }
  if (key.empty()) return report(item.header, fmt::format("'{}' {}: KEY.json, KEY.jpg, ...", item.name, no_part));
  const bool begins_run = !open_ || key != open_->key;
  if (begins_run) {
    const auto known = by_key_.find(key);
    if (known == by_key_.end()) {
      open_ = &groups_.emplace_back(Group{std::string(key), {}});
      by_key_.emplace(open_->key, open_);
    } else {
      open_ = known->second;
    }
  }
  open_->parts.push_back({{std::string(rest), item.offset, item.size}, item.header, begins_run});
}

void Grouping::finish() {
  for (Group& group : groups_) {
    callback_(complete(group));
    group.parts = {};
  }
  std::ranges::stable_sort(reported_, {}, &Damage::offset);
  damages_ = reported_.size();
  if (reported_.size() > max_reported) reported_.resize(max_reported);
}

} // namespace fvlm
