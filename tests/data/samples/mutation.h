// Shards mutated by seed, with the samples that must still be readable.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace fvlm::test {

struct SyntheticMember {
  std::string key;
  size_t begin = 0, header = 0, end = 0; // of all its blocks; where its own header stands among them
};

struct SyntheticShard {
  std::string bytes;
  std::vector<SyntheticMember> members;
};

// Two dozen small samples of every form.
SyntheticShard made_shard();

struct Mutated {
  std::string bytes;
  std::string what;              // the mutation, for messages
  std::set<std::string> touched; // keys of samples that need not come out as they were
  bool packed = false;           // it is a .tar.gz
};

Mutated mutate(const SyntheticShard& shard, uint64_t seed);

} // namespace fvlm::test
