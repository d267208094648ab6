// Prints the JSON of every sample of a shard, one a line: form_probe PATH. Bytes are { "bytes": base64 }.
#include "base/base64.h"
#include "base/error.h"
#include "base/scratch_folder.h"
#include "data/shards/shard.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

using namespace fvlm;

namespace {

void encode_bytes(nlohmann::json& json) {
  if (json.is_binary()) {
    const auto& bytes = json.get_binary();
    json = {{"bytes", encode_base64({reinterpret_cast<const char*>(bytes.data()), bytes.size()})}};
  } else if (json.is_structured()) {
    for (auto& inner : json) encode_bytes(inner);
  }
}

} // namespace

int main(int, char** argv) {
  try {
    const ScratchFolder cache;
    const auto shard = Shard::open(argv[1], {.cache = cache.path(), .index_beside = false});
    for (const Damage& damage : shard->damage()) fmt::print("damage: {}\n", damage.reason);
    for (int64_t i = 0; i < shard->size(); ++i) try {
        auto json = shard->json(shard->sample(i)).value_or(nullptr);
        encode_bytes(json);
        fmt::print("{}\n", json.dump());
      } catch (const Error& error) {
        fmt::print("broken: {}; {}\n", error.what(), error.advice());
      }
    return 0;
  } catch (const Error& error) {
    fmt::print("error: {}\n", error.text());
    return 1;
  }
}
