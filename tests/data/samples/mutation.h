// Shards gone wrong in every way that a seed leads to, with what must still come out of them.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace fvlm::test {

struct MadeMember {
  std::string key;
  size_t begin = 0, header = 0, end = 0; // of all its blocks; where its own header stands among them
};

struct MadeShard {
  std::string bytes;
  std::vector<MadeMember> members;
};

// Two dozen small samples of every form.
MadeShard made_shard();

struct Mutated {
  std::string bytes;
  std::string what;              // was done, for messages
  std::set<std::string> touched; // keys of samples that need not come out as they were
  bool packed = false;           // it is a .tar.gz
};

Mutated mutate(const MadeShard& shard, uint64_t seed);

} // namespace fvlm::test
