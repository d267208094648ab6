#include "base/text.h"
#include "data/shards/grouping.h"
#include "data/shards/shard_form.h"
#include "data/shards/shard_index.h"

#include <algorithm>
#include <array>

namespace fvlm {
namespace {

const std::vector<ShardForm>& forms() {
  static const std::vector<ShardForm> all = {
      {"a list of JSON objects, one a line",
       {".jsonl", ".ndjson"},
       101,
       true,
       "\n{\"fvlm_broken\": \"the compressed file is damaged, and its further lines are lost\"}\n",
       scan_lines},
      {"a JSON list", {".json"}, 201, true, "", scan_objects},
      {"a Parquet file", {".parquet"}, 401, true, "", scan_parquet, open_parquet},
      {"a tar", {}, 2, false, "", scan_tar_members},
  };
  return all;
}

} // namespace

const ShardForm& folder_form() {
  static const ShardForm folder = {"a folder", {}, 301, false, "", scan_folder_list};
  return folder;
}

const ShardForm& form_of(const std::filesystem::path& path) {
  std::string name = lower_case(path.filename().string());
  for (const std::string_view packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  const auto found = std::find_if(forms().begin(), forms().end(), [&](const ShardForm& form) {
    return form.endings.empty() || std::any_of(form.endings.begin(), form.endings.end(),
                                               [&](std::string_view ending) { return name.ends_with(ending); });
  });
  return *found;
}

void scan_tar_members(const RetryingFile& file, IndexWriter& index) {
  Grouping grouping([&](const ShardSample& sample) { index.add(sample); });
  scan_tar(file, [&](TarEntry&& item) { grouping.add(std::move(item)); });
  grouping.finish();
  for (const Damage& damage : grouping.reported()) index.report(damage);
  index.count_damages(grouping.damages() - grouping.reported().size());
}

} // namespace fvlm
