// Checks of packers: the rules of bins, one per row, on the same sets of items.
#include "base/clock.h"
#include "check/families.h"
#include "check/generic.h"
#include "check/packer.h"
#include "check/probe.h"

#include <alloca.h>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

namespace fvlm::check {
namespace {

using Rule = std::string (*)(const PackerCase&, const Bins&);

std::vector<PackerCase> ordinary() {
  std::vector<PackerCase> all{uniform_items(200, 1, 3), uniform_items(60, 2, 4), uniform_items(90, 3, 5),
                              uniform_items(2, 1, 6)};
  all.push_back({.capacity = {4096}, .sizes = ragged_lengths(300, 7)});
  // Items that exactly fill a bin, alone and in pairs.
  all.push_back({.capacity = {10}, .sizes = {10, 5, 5, 3, 7, 10, 1, 9}});
  return all;
}

Outcome run_and_compare(Context& context, const std::vector<PackerCase>& cases, std::initializer_list<Rule> rules) {
  int done = 0;
  std::string why;
  for (const auto& one : cases) {
    const std::string label = packer_trial(one).label;
    if (fvlm_support answer = packer_supports(context, one); answer.score <= 0) {
      why = answer.reason;
      continue;
    }
    Bins bins = pack(context, one);
    if (!bins.failure.empty()) return failed("{}: {}", label, bins.failure);
    for (Rule rule : rules)
      if (auto broken = rule(one, bins); !broken.empty()) return failed("{}: {}", label, broken);
    ++done;
  }
  return done ? ok(fmt::format("{} sets of items", done)) : not_applicable("supports() says no: " + why);
}

std::string in_range(const PackerCase& c, const Bins& bins) {
  if (bins.count < 0) return fmt::format("bin_count is {}", bins.count);
  for (int64_t i = 0; i < c.items(); ++i) {
    const int32_t bin = bins.of_item[static_cast<size_t>(i)];
    if (c.fits(i) && (bin < 0 || bin >= bins.count))
      return fmt::format("item {} lies in bin {} of {}, though it fits an empty bin", i, bin, bins.count);
  }
  return "";
}

std::string oversized_out(const PackerCase& c, const Bins& bins) {
  for (int64_t i = 0; i < c.items(); ++i)
    if (!c.fits(i) && bins.of_item[static_cast<size_t>(i)] != -1)
      return fmt::format("item {} is larger than an empty bin and lies in bin {}", i,
                         bins.of_item[static_cast<size_t>(i)]);
  return "";
}

std::string within_capacity(const PackerCase& c, const Bins& bins) {
  for (int64_t d = 0; d < c.dimensions(); ++d) {
    const int64_t capacity = c.capacity[static_cast<size_t>(d)];
    // Tracks the remaining capacity, because sums of sizes may overflow int64.
    std::vector<int64_t> left(static_cast<size_t>(std::max(bins.count, 0)), capacity);
    for (int64_t i = 0; i < c.items(); ++i) {
      const int32_t bin = bins.of_item[static_cast<size_t>(i)];
      if (bin < 0 || bin >= bins.count) continue;
      const int64_t size = c.sizes[static_cast<size_t>(i * c.dimensions() + d)];
      if (size > left[static_cast<size_t>(bin)])
        return fmt::format("item {} takes {} of dimension {}, of whose {} bin {} has {} left", i, size, d, capacity,
                           bin, left[static_cast<size_t>(bin)]);
      left[static_cast<size_t>(bin)] -= size;
    }
  }
  return "";
}

std::vector<int64_t> items_in_bins(const PackerCase& c, const Bins& bins) {
  std::vector<int64_t> items(static_cast<size_t>(std::max(bins.count, 0)), 0);
  for (int64_t i = 0; i < c.items(); ++i)
    if (const int32_t bin = bins.of_item[static_cast<size_t>(i)]; bin >= 0 && bin < bins.count)
      ++items[static_cast<size_t>(bin)];
  return items;
}

std::string within_max_items(const PackerCase& c, const Bins& bins) {
  if (c.max_items == 0) return "";
  auto items = items_in_bins(c, bins);
  for (size_t bin = 0; bin < items.size(); ++bin)
    if (items[bin] > c.max_items)
      return fmt::format("bin {} holds {} items, at most {} are allowed", bin, items[bin], c.max_items);
  return "";
}

std::string none_empty(const PackerCase& c, const Bins& bins) {
  auto items = items_in_bins(c, bins);
  for (size_t bin = 0; bin < items.size(); ++bin)
    if (items[bin] == 0) return fmt::format("bin {} of {} is empty", bin, bins.count);
  return "";
}

std::string first_first(const PackerCase& c, const Bins& bins) {
  for (int64_t i = 0; i < c.items(); ++i)
    if (c.fits(i)) {
      const int32_t bin = bins.of_item[static_cast<size_t>(i)];
      return bin == 0 ? "" : fmt::format("item {}, the first that fits, lies in bin {} instead of 0", i, bin);
    }
  return "";
}

Outcome places_all(Context& context) {
  return run_and_compare(context, ordinary(), {in_range});
}
Outcome capacity(Context& context) {
  return run_and_compare(context, ordinary(), {within_capacity});
}
Outcome empty_bins(Context& context) {
  return run_and_compare(context, ordinary(), {none_empty});
}

Outcome first_item(Context& context) {
  // The first item is the smallest, so that "largest first" would pack it last.
  std::vector<PackerCase> all = ordinary();
  for (auto& one : all)
    for (int64_t d = 0; d < one.dimensions(); ++d) one.sizes[static_cast<size_t>(d)] = 1;
  auto behind = uniform_items(50, 1, 9);
  behind.sizes[0] = behind.sizes[1] = 5000; // larger than a bin: item 2 is the first that fits
  behind.sizes[2] = 1;
  all.push_back(behind);
  return run_and_compare(context, all, {first_first});
}

Outcome max_items(Context& context) {
  std::vector<PackerCase> all;
  for (int64_t most : {1, 2, 5, 17, 65, 129, 257}) {
    auto one = uniform_items(most < 10 ? 100 : 600, 1, 11);
    for (auto& size : one.sizes) size = most < 10 ? 1 + size % 40 : size % 3; // max_items is the limit, not capacity
    one.max_items = most;
    all.push_back(one);
  }
  return run_and_compare(context, all, {within_max_items, in_range, within_capacity});
}

Outcome oversized(Context& context) {
  auto some = uniform_items(80, 1, 12), second = uniform_items(40, 2, 13), every = uniform_items(5, 1, 14);
  for (size_t i = 0; i < some.sizes.size(); i += 7) some.sizes[i] = 1001 + static_cast<int64_t>(i);
  for (size_t i = 1; i < second.sizes.size(); i += 10) second.sizes[i] = 65; // in the second dimension alone
  for (auto& size : every.sizes) size = 2000;
  return run_and_compare(context, {some, second, every}, {oversized_out, in_range, within_capacity, none_empty});
}

Outcome zero_sizes(Context& context) {
  auto some = uniform_items(80, 1, 15), half = uniform_items(40, 2, 16), every = uniform_items(9, 1, 17);
  for (size_t i = 0; i < some.sizes.size(); i += 3) some.sizes[i] = 0;
  for (size_t i = 1; i < half.sizes.size(); i += 4) half.sizes[i] = 0;
  for (auto& size : every.sizes) size = 0;
  return run_and_compare(context, {some, half, every}, {in_range, within_capacity, none_empty, first_first});
}

Outcome zero_capacity(Context& context) {
  PackerCase one{.capacity = {100, 0}, .sizes = {10, 0, 20, 1, 30, 0}};
  return run_and_compare(context, {one}, {oversized_out, in_range, within_capacity, none_empty});
}

Outcome no_items(Context& context) {
  PackerCase none{.capacity = {100}};
  if (packer_supports(context, none).score <= 0) return not_applicable("supports() says no");
  Bins bins = pack(context, none);
  if (!bins.failure.empty()) return failed(bins.failure);
  return bins.count == 0 ? ok() : failed("no items, and {} bins", bins.count);
}

Outcome one_item(Context& context) {
  return run_and_compare(
      context,
      {{.capacity = {100}, .sizes = {100}}, {.capacity = {100}, .sizes = {1}}, {.capacity = {1}, .sizes = {1}}},
      {in_range, within_capacity, none_empty, first_first});
}

Outcome huge_sizes(Context& context) {
  const int64_t most = std::numeric_limits<int64_t>::max(), large = int64_t{1} << 62;
  return run_and_compare(context,
                         {{.capacity = {most}, .sizes = {large, large, large, large - 1, 1, 2}},
                          {.capacity = {large}, .sizes = {large, 1, large - 1, most}}},
                         {in_range, oversized_out, within_capacity, none_empty});
}

Outcome seeds(Context& context) {
  std::vector<PackerCase> all;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{12345}, ~uint64_t{0}}) {
    auto one = uniform_items(150, 1, 20);
    one.seed = seed;
    all.push_back(one);
  }
  return run_and_compare(context, all, {in_range, within_capacity, none_empty, first_first});
}

Outcome pure(Context& context) {
  for (const auto& one : ordinary()) {
    if (packer_supports(context, one).score <= 0) continue;
    Bins first = pack(context, one);
    Instance fresh(context, context.host());
    for (const Bins& again : {pack(context, one), pack(context, one, {.instance = fresh.get()})}) {
      if (!again.failure.empty()) return failed(again.failure);
      if (first.count != again.count || first.of_item != again.of_item)
        return failed("{}: other bins each time ({} and {})", packer_trial(one).label, first.count, again.count);
    }
  }
  return ok();
}

// Runs functions one after the other, each on a thread of its own. The threads live as long as this does, so that no
// two have the same address or the same stack.
class LastingThreads {
 public:
  void run(const std::function<void()>& function) {
    std::promise<void> done;
    threads_.emplace_back([&function, &done, end = end_] {
      function();
      done.set_value();
      end.wait();
    });
    done.get_future().wait();
  }
  LastingThreads() = default;
  ~LastingThreads() {
    ended_.set_value();
    for (std::thread& thread : threads_) thread.join();
  }
  LastingThreads(const LastingThreads&) = delete;
  LastingThreads& operator=(const LastingThreads&) = delete;

 private:
  std::promise<void> ended_;
  std::shared_future<void> end_ = ended_.get_future().share();
  std::vector<std::thread> threads_;
};

// Varies everything that a plugin could depend on besides its arguments: time, process, random numbers, environment,
// the engine's threads, addresses.
Outcome pure_anywhere(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  if (!watch_calls(context.subject.handle())) return not_applicable("this machine's linker tables are not understood");
  std::vector<std::unique_ptr<char[]>> between;
  for (const Trial& trial : packer_sets()) {
    if (!refusal(context, trial).empty()) continue;
    const Run first = run_fully(context, trial);
    LastingThreads threads;
    for (int world = 1; world <= 9; ++world) {
      TestHost& host = TestHost::with_threads(1 + 3 * (world % 3), world % 2 == 0);
      Instance fresh(context, host);
      const Variation variation{.host = &host, .instance = fresh.get()};
      between.push_back(std::make_unique<char[]>(static_cast<size_t>(977 * world)));
      std::srand(static_cast<unsigned>(world));
      shift_system_values(world);
      Run again;
      // Also on the stack of another thread.
      threads.run([&] {
        [[maybe_unused]] volatile char* deeper = static_cast<char*>(alloca(static_cast<size_t>(3001 * world)));
        deeper[0] = 0;
        again = trial.run(context, variation);
      });
      shift_system_values(0);
      if (auto differ = different_bits(first, again); !differ.empty())
        return failed("{}: other bins at another time, in another process or with another number of threads: {}",
                      trial.label, differ);
    }
  }
  return ok("9 worlds");
}

// In some of them only the last dimension is limiting.
Outcome many_dimensions(Context& context) {
  std::vector<PackerCase> all;
  for (int dimensions : {5, 9, 17, 33}) {
    PackerCase one = uniform_items(60, dimensions, static_cast<uint64_t>(40 + dimensions)), last = one;
    for (size_t i = 0; i < last.sizes.size(); ++i)
      if (i % static_cast<size_t>(dimensions) != static_cast<size_t>(dimensions) - 1) last.sizes[i] = 0;
    all.push_back(one);
    all.push_back(last);
  }
  return run_and_compare(context, all, {in_range, within_capacity, none_empty, first_first});
}

Outcome wide_sizes(Context& context) {
  const int64_t unit = int64_t{1} << 32;
  return run_and_compare(
      context,
      {{.capacity = {10 * unit}, .sizes = {5 * unit, 6 * unit, 3 * unit + 1, 10 * unit, 1, 4 * unit}},
       {.capacity = {unit + 10}, .sizes = {unit, 9, unit + 5, 5, 6, unit + 11}},
       {.capacity = {(unit >> 1) + 4}, .sizes = {unit >> 1, 3, 2, unit >> 1, (unit >> 1) - 1, 4}}},
      {in_range, oversized_out, within_capacity, none_empty, first_first});
}

Outcome many_items(Context& context) {
  PackerCase one{.capacity = {4096}, .sizes = ragged_lengths(100000, 21)};
  const double start = steady_seconds();
  Outcome outcome = run_and_compare(context, {one}, {in_range, within_capacity, none_empty, first_first});
  const double seconds = steady_seconds() - start;
  if (outcome.state == State::ok) outcome.text = fmt::format("{:.2f} s", seconds);
  return outcome;
}

// More bins than 16 bits can count.
Outcome many_bins(Context& context) {
  return run_and_compare(context, {{.capacity = {7}, .sizes = std::vector<int64_t>(66000, 7)}},
                         {in_range, within_capacity, none_empty, first_first});
}

Outcome nonsense(Context& context) {
  const int64_t capacity[] = {100};
  const auto supports = context.table<fvlm_packer_v1>().supports;
  fvlm_packer_query query{sizeof query, 0, 0, capacity};
  if (query_support(supports, query).score > 0) return failed("supports() says yes to no dimensions");
  query = {0, 1, 0, capacity};
  if (query_support(supports, query).score > 0) return failed("supports() says yes to struct_size 0");
  return ok("2 queries");
}

} // namespace

Table packer_table() {
  Table table{"packer", {}, packer_benchmarks()};
  append(table.checks,
         {
             {"places_all", "every item that fits an empty bin lies in one", places_all},
             {"capacity", "no bin holds more than its capacity, in any dimension", capacity},
             {"empty_bins", "no bin is empty", empty_bins},
             {"first_item", "the first item that fits lies in bin 0", first_item},
             {"pure", "the same items lie in the same bins, whatever was packed before", pure},
             {"pure_anywhere", "the same bins at any time, in any process, with any number of threads", pure_anywhere,
              "pure"},
             {"many_dimensions", "items of 5, 9, 17 and 33 dimensions", many_dimensions,
              "places_all,capacity,empty_bins,first_item"},
             {"wide_sizes", "sizes that 32 bits do not hold", wide_sizes, "places_all,capacity,empty_bins,first_item"},
             {"max_items", "no bin holds more items than allowed", max_items, "places_all,capacity"},
             {"oversized", "an item larger than an empty bin gets -1", oversized, "places_all,capacity,empty_bins"},
             {"zero_sizes", "items of size 0", zero_sizes, "places_all,capacity,empty_bins,first_item"},
             {"zero_capacity", "a dimension of capacity 0", zero_capacity, "places_all,capacity,empty_bins,oversized"},
             {"no_items", "no items, no bins", no_items},
             {"one_item", "a single item", one_item, "places_all,capacity,empty_bins,first_item"},
             {"huge_sizes", "sizes near the end of int64 do not overflow", huge_sizes,
              "places_all,capacity,empty_bins,oversized"},
             {"seeds", "the rules hold for any seed", seeds, "places_all,capacity,empty_bins,first_item"},
             {"many_items", "100,000 items", many_items, "places_all,capacity,empty_bins,first_item"},
             {"many_bins", "66,000 items, each of which fills a bin", many_bins,
              "places_all,capacity,empty_bins,first_item", Extent::thorough},
             {"supports_nonsense", "supports() refuses impossible queries", nonsense},
         });
  append(table.checks, generic_host_checks());
  return table;
}

} // namespace fvlm::check
