// Errors of a broken sample get the name of the shard and the sample; a failing disk's stay what they are.
#pragma once
#include "base/error.h"
#include "data/shards/shard.h"

#include <fmt/format.h>

#include <string>

namespace fvlm {

template <class Work>
auto placed(const Shard& shard, const std::string& key, Work&& work) {
  try {
    return work();
  } catch (const ReadError&) {
    throw;
  } catch (const Error& error) {
    std::string what = error.where().empty() ? error.what() : fmt::format("{}: {}", error.where(), error.what());
    throw Error(error.kind(), what)
        .at(fmt::format("{}: sample '{}'", shard.path().string(), key))
        .advise(error.advice());
  }
}

} // namespace fvlm
