// Checks of concurrency: the pieces of a parallel_for, interleaved calls of two instances, hosts with many threads.
#include "check/child.h"
#include "check/generic.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace fvlm::check {
namespace {

// Small shapes and those of several pieces.
std::vector<Trial> all_shapes(Context& context) {
  std::vector<Trial> all = context.small();
  for (const Trial& trial : context.parallel())
    if (trial.label != all.front().label) all.push_back(trial);
  return all;
}

// Repetitions of a test that may fail by chance: at least two, up to ten within one second.
class RepeatBudget {
 public:
  bool allows(int done) const { return done < 2 || (done < 10 && elapsed() < std::chrono::seconds(1)); }
  std::chrono::steady_clock::duration elapsed() const { return std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Outcome deterministic(Context& context) {
  for (const Trial& trial : all_shapes(context)) {
    const Variation forwards{}, backwards{.host = &TestHost::with_threads(2, true)};
    Run first = run_fully(context, trial);
    for (int i = 0; i < 3; ++i)
      for (const Variation& variation : {forwards, backwards})
        if (auto differ = different_bits(first, trial.run(context, variation)); !differ.empty())
          return failed("{}: {}", trial.label, differ);
  }
  return ok();
}

// Seven pieces, of which shared heads have one that begins within a group.
Outcome pieces_in_any_order(Context& context) {
  for (const Trial& trial : all_shapes(context)) {
    Variation forwards, backwards;
    forwards.host = &TestHost::serial(7), backwards.host = &TestHost::serial(7, true);
    Instance one(context, *forwards.host), other(context, *backwards.host);
    forwards.instance = one.get(), backwards.instance = other.get();
    Run first = run_fully(context, trial, forwards);
    if (auto differ = different_bits(first, trial.run(context, backwards)); !differ.empty())
      return failed("{}, the last piece first: {}", trial.label, differ);
  }
  return ok();
}

Outcome pieces_apart(Context& context) {
  TestHost& host = TestHost::serial(7);
  Instance own(context, host);
  const Variation variation{.record_races = true, .host = &host, .instance = own.get()};
  for (const Trial& trial : all_shapes(context)) {
    Run run = run_fully(context, trial, variation);
    if (auto raced = run.violation(Violation::raced)) return failed("{}: {}", trial.label, *raced);
  }
  return ok();
}

// Interleaves the pieces, so that memory which they wrongly share is overwritten by another piece before it is read.
Outcome pieces_at_once(Context& context) {
  TestHost& host = TestHost::with_threads(4);
  Instance own(context, host);
  const Variation variation{.host = &host, .instance = own.get()};
  for (const Trial& trial : context.parallel()) {
    keep_alive();
    TestHost& one_by_one = TestHost::serial(4);
    Instance alone(context, one_by_one);
    Run first = run_fully(context, trial, {.host = &one_by_one, .instance = alone.get()});
    const TestHost::Interleaved interleaved(host);
    const RepeatBudget budget;
    for (int i = 0; budget.allows(i); ++i)
      if (auto differ = different_bits(first, trial.run(context, variation)); !differ.empty())
        return failed("{}, in four pieces at once: {}", trial.label, differ);
  }
  return ok();
}

// Runs a second instance between the pieces of a first one, on another thread, as a second model might. A video plugin
// has no pieces; its second instance runs between two pictures.
Outcome instances_nested(Context& context) {
  TestHost& host = TestHost::serial(4);
  Instance own(context, host), others(context, context.host());
  const Variation plain{.host = &host, .instance = own.get()}, other{.instance = others.get()};
  Variation mixed = plain;
  const auto shapes = all_shapes(context);
  const auto& between = context.typical();
  int nested = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    Run alone = shapes[i].run(context, plain);
    if (!alone.done()) return failed("{}: {}", shapes[i].label, alone.failure());
    const Trial& second = between[(i + 1) % between.size()];
    Run expected = second.run(context, other);
    std::string failure;
    const auto run_second = [&] {
      std::thread([&] {
        try {
          Run run = second.run(context, other);
          if (std::string differ = run.done() ? different_bits(expected, run) : run.failure(); failure.empty())
            failure = differ;
        } catch (const RowAborted& refused) {
          failure = refused.text;
        }
      }).join();
    };
    mixed.between = [&] {
      host.between_pieces([&](int64_t) {
        ++nested;
        run_second();
      });
    };
    Run run = shapes[i].run(context, mixed);
    host.between_pieces({});
    if (auto differ = run.done() ? different_bits(alone, run) : run.failure(); !differ.empty())
      return failed("{}, with another instance's calls for {} between its pieces: {}", shapes[i].label, second.label,
                    differ);
    if (!failure.empty())
      return failed("{}, called between the pieces of another instance's {}: {}", second.label, shapes[i].label,
                    failure);
  }
  return nested ? ok(fmt::format("{} times", nested))
                : not_applicable("it neither uses parallel_for nor hands over pictures");
}

// Calls of two instances alternate, each for a shape of its own: neither may use what the other prepared.
Outcome instances_in_turn(Context& context) {
  const auto shapes = all_shapes(context);
  Instance one(context, context.host()), other(context, context.host());
  const Variation mine{.instance = one.get()}, others{.instance = other.get()};
  Variation mixed = mine;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Trial& second = shapes[(i + 1) % shapes.size()];
    Run alone = shapes[i].run(context, mine);
    if (!alone.done()) return failed("{}: {}", shapes[i].label, alone.failure());
    Run alone_too = second.run(context, others);
    std::string failure;
    mixed.between = [&] {
      if (auto differ = different_bits(alone_too, second.run(context, others)); failure.empty()) failure = differ;
    };
    if (auto differ = different_bits(alone, shapes[i].run(context, mixed)); !differ.empty())
      return failed("{}, with another instance's calls for {} before each of its own: {}", shapes[i].label,
                    second.label, differ);
    if (!failure.empty())
      return failed("{}, called before each call of another instance for {}: {}", second.label, shapes[i].label,
                    failure);
  }
  return ok(fmt::format("{} shapes", shapes.size()));
}

Outcome thread_counts(Context& context) {
  std::vector<Trial> shapes = context.typical();
  for (const Trial& trial : context.parallel()) shapes.push_back(trial);
  // Of a machine of many cores, one after the other.
  for (TestHost* host : {&TestHost::with_threads(1), &TestHost::with_threads(3), &TestHost::with_threads(7),
                         &TestHost::serial(33), &TestHost::serial(260)}) {
    const int threads = host->abi()->parallel_threads(host->abi());
    Instance own(context, *host);
    Outcome outcome = expect_correct(context, shapes, {.host = host, .instance = own.get()});
    if (outcome.state != State::ok) return {outcome.state, fmt::format("{} threads: {}", threads, outcome.text)};
  }
  return ok("1, 3, 7, 33 and 260 threads");
}

Outcome two_threads(Context& context) {
  const std::vector<Trial> trials = context.quick ? context.typical() : all_shapes(context);
  std::vector<Run> alone;
  for (const Trial& trial : trials) {
    alone.push_back(trial.run(context, {}));
    if (!alone.back().done()) return failed("{}: {}", trial.label, alone.back().failure());
  }
  std::string failure[2];
  const RepeatBudget budget;
  auto work = [&](size_t which, fvlm_instance* instance) {
    // On a busy machine each yield gives the core away for milliseconds, so threads stop yielding after five seconds.
    std::optional<FrequentYields> yields(std::in_place);
    const Variation variation{.instance = instance};
    const auto trouble_of = [&](size_t i) {
      try {
        Run run = trials[i].run(context, variation);
        return run.done() ? different_bits(alone[i], run) : run.failure();
      } catch (const RowAborted& refused) { // nothing else catches it on this thread
        return refused.text;
      }
    };
    // One goes through the shapes forwards and the other backwards: calls that overlap are then for different shapes,
    // also where a few shapes take nearly all the time. Two calls for one shape would hide memory that they share.
    // Short calls of two threads rarely overlap, so they are repeated for a second.
    const auto again = [&](size_t turn) {
      return turn < 2 * trials.size() || budget.elapsed() < std::chrono::seconds(1);
    };
    for (size_t turn = 0; again(turn) && failure[which].empty(); ++turn) {
      const size_t place = turn % trials.size(), i = which == 0 ? place : trials.size() - 1 - place;
      if (budget.elapsed() > std::chrono::seconds(5)) yields.reset();
      if (failure[which] = trouble_of(i); !failure[which].empty())
        failure[which] = trials[i].label + ": " + failure[which];
    }
  };
  Instance one(context, context.host()), other(context, context.host());
  std::thread second(work, 1, other.get());
  work(0, one.get());
  second.join();
  for (const auto& text : failure)
    if (!text.empty()) return failed(text);
  return ok();
}

} // namespace

std::vector<Check> concurrency_checks(const std::string& needs) {
  const char* repeat = "deterministic,pure"; // rows that compare the bits of two runs
  return {
      {"deterministic", "with FVLM_DETERMINISTIC the same bits each time, whichever piece of parallel_for ends first",
       deterministic},
      {"pieces_in_any_order",
       "with FVLM_DETERMINISTIC the same bits where seven pieces run first to last and last to first",
       pieces_in_any_order, repeat},
      {"pieces_apart", "with FVLM_DETERMINISTIC no two pieces of a parallel_for write the same memory of an output",
       pieces_apart, "deterministic,pieces_in_any_order"},
      {"thread_counts", "right on hosts with 1 to 260 threads", thread_counts, needs},
      {"pieces_at_once", "pieces that run through each other give what they give one after the other", pieces_at_once,
       repeat, Extent::thorough},
      {"two_threads", "two instances on two threads at once give what each gives alone", two_threads, repeat},
      {"instances_nested",
       "another instance's calls between the pieces of a parallel_for, or between pictures, change nothing",
       instances_nested, repeat},
      {"instances_in_turn", "two instances with shapes of their own, in turn, give what each gives alone",
       instances_in_turn, repeat},
  };
}

} // namespace fvlm::check
