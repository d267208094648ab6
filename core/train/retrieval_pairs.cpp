#include "train/retrieval_pairs.h"

#include <ATen/ops/zeros.h>

#include <set>
#include <utility>
#include <vector>

namespace fvlm::train {

objective::Retrieval retrieval_of(const HostPack& host, int64_t queries, int64_t texts) {
  using Role = Sample::Role;
  objective::Retrieval out{at::zeros({queries}, at::kLong), at::zeros({queries}, at::kLong),
                           at::zeros({queries, texts}, at::kBool)};
  std::vector<uint64_t> content;                 // of each text
  std::vector<int64_t> query_at;                 // texts
  std::set<std::pair<uint64_t, uint64_t>> right; // contents of queries, and of what they are to find
  for (size_t i = 0; i < host.samples.size(); ++i) {
    content.push_back(host.content_of(host.samples[i]));
    const Role role = host.samples[i].sample->role;
    if (role == Role::query) query_at.push_back(static_cast<int64_t>(i));
    if (role == Role::positive) right.emplace(content[i - 1], content[i]);
  }
  auto* const from = out.queries.mutable_data_ptr<int64_t>();
  auto* const to = out.positives.mutable_data_ptr<int64_t>();
  auto* compared = out.compared.mutable_data_ptr<bool>();
  for (size_t i = 0; i < static_cast<size_t>(queries); ++i, compared += texts) {
    const bool is_padding = i >= query_at.size();
    from[i] = is_padding ? 0 : query_at[i];
    to[i] = is_padding ? 0 : query_at[i] + 1;
    for (size_t text = 0; !is_padding && text < content.size(); ++text)
      compared[text] = host.samples[text].sample->role != Role::query &&
                       !right.contains({content[static_cast<size_t>(from[i])], content[text]});
    compared[to[i]] = true;
  }
  return out;
}

} // namespace fvlm::train
