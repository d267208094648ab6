// Invalid queries, each a valid one with one thing wrong: supports() has to refuse them, with a reason.
#pragma once
#include "check/trial.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace fvlm::check {

template <class Query>
class InvalidQueries {
 public:
  template <class Change>
  void add(std::string what, const Query& good, Change change) {
    queries_.emplace_back(std::move(what), good);
    change(queries_.back().second);
  }
  // Faults that a query of any kind can have; `dtype` is one of its types.
  void add_usual(const Query& good, fvlm_dtype Query::*dtype, const std::string& subject = "") {
    add(subject + "in integers", good, [&](Query& q) { q.*dtype = {FVLM_INT, 32, 1}; });
    add(subject + "in a type of 7 bits", good, [&](Query& q) { (q.*dtype).bits = 7; });
    add(subject + "with struct_size 0", good, [](Query& q) { q.struct_size = 0; });
    add(subject + "with vectors as elements", good, [&](Query& q) { (q.*dtype).lanes = 4; });
    add(subject + "on a device of type 77", good, [](Query& q) { q.device.type = 77; });
  }

  Outcome refused_by(void (*supports)(const Query*, fvlm_support*)) const {
    for (const auto& [what, query] : queries_) {
      const fvlm_support answer = query_support(supports, query);
      if (answer.score > 0) return failed("supports() says yes to a query {}", what);
      if (!answer.reason[0]) return failed("supports() refuses a query {} without a reason", what);
    }
    return ok(fmt::format("{} queries", queries_.size()));
  }

 private:
  std::vector<std::pair<std::string, Query>> queries_;
};

} // namespace fvlm::check
