// fvlm-engine bench ragged: measures training on samples of all lengths, end to end.
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "bench/ragged.h"
#include "bench/verb.h"
#include "bench/verb_peer.h"
#include "bench/verb_report.h"
#include "bench/verb_training.h"
#include "cli/plugin_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace fvlm::cli {
namespace {

constexpr const char* default_packs = "512:11520";

void add_line(TextTable& table, const bench::RaggedReport::Row& row, const std::string& name,
              const bench::RaggedReport::Part& part) {
  table.row({name, fmt::format("{}", part.samples), fmt::format("{}", part.steps),
             fmt::format("{:.1f}", part.a_second(part.samples)), fmt::format("{:.0f}", part.a_second(part.frames)),
             fmt::format("{:.0f}", part.a_second(part.tokens)),
             fmt::format("{:.1f} %, {:.1f} %", row.fill_of_frames(part) * 100, row.fill_of_rows(part) * 100),
             fmt::format("{}", part.new_classes), fmt::format("{}", part.captured),
             part.lost_seconds ? fmt::format("{:.2f}", *part.lost_seconds) : "-"});
}

// Each pass, the later ones as a whole, and what is left without captures. `first`: what else the first pass did.
std::vector<std::pair<std::string, const bench::RaggedReport::Part*>> lines_of(const bench::RaggedReport::Side& side,
                                                                               const char* first) {
  std::vector<std::pair<std::string, const bench::RaggedReport::Part*>> lines;
  for (size_t pass = 0; pass < side.passes.size(); ++pass)
    lines.emplace_back(pass == 0 ? fmt::format("1, {}", first) : fmt::format("{}", pass + 1), &side.passes[pass]);
  lines.emplace_back(fmt::format("whole passes, 2 to {}", side.passes.size()), &side.whole);
  if (side.steady.steps > 0) lines.emplace_back("steady: without captures", &side.steady);
  return lines;
}

void print_row(const bench::RaggedReport::Row& row) {
  fmt::print("\npacks of {} frames and {} tokens: ", row.capacity.frames, row.capacity.rows);
  if (!row.problem.empty()) {
    fmt::print("{}\n", row.problem);
    return;
  }
  fmt::print("peak {}, {} shapes, loss {:.4f} -> {:.4f}\n", human_bytes(static_cast<uint64_t>(row.peak_bytes)),
             row.classes, row.first_loss, row.last_loss);
  TextTable table({"pass", "samples", "steps", "samples/s", "frames/s", "text tokens/s", "fill of frames, rows",
                   "new shapes", "captured", "capture s"});
  for (const auto& [name, part] : lines_of(row, row.passes.front().replayed() ? "the first" : "with captures"))
    add_line(table, row, name, *part);
  fmt::print("{}", table.text());
  if (row.steady.steps == 0) return;
  std::vector<std::string> shares;
  for (const auto& [name, seconds] : row.steady.parts)
    shares.push_back(fmt::format("{} {:.1f} %", name, seconds / row.steady.seconds * 100));
  fmt::print("steady, host time: {}\n", join(shares, ", "));
}

void print_peer(const bench::RaggedReport& report) {
  const auto& peer = *report.peer;
  if (!peer.problem.empty()) {
    fmt::print("\nthe peer: {}\n", peer.problem);
    return;
  }
  fmt::print("\nthe peer: peak {}\n", human_bytes(static_cast<uint64_t>(peer.peak_bytes)));
  TextTable table({"pass", "samples", "steps", "samples/s", "frames/s", "text tokens/s", "padded rows"});
  for (const auto& [name, part] : lines_of(peer, "warm-up"))
    table.row({name, fmt::format("{}", part->samples), fmt::format("{}", part->steps),
               fmt::format("{:.1f}", part->a_second(part->samples)),
               fmt::format("{:.0f}", part->a_second(part->frames)), fmt::format("{:.0f}", part->a_second(part->tokens)),
               fmt::format("{:.1f} %",
                           100 - 100.0 * static_cast<double>(part->rows) / static_cast<double>(part->computed_rows))});
  fmt::print("{}", table.text());
  for (const auto& row : report.rows) {
    if (!row.problem.empty()) continue;
    const auto steady = report.ratio_of_steady(row);
    fmt::print("packs of {}: {:.2f} times the peer's samples per second in whole passes, {} in the steady state\n",
               row.packs, report.ratio_of_whole(row), steady ? fmt::format("{:.2f}", *steady) : "not known");
  }
}

void print_ragged(const bench::RaggedReport& report) {
  for (const auto& row : report.rows) print_row(row);
  if (report.peer) print_peer(report);
}

std::vector<std::string> frozen_groups(const std::string& names) {
  const auto known = plan::parameter_groups({});
  auto groups = split(names, ',');
  for (const std::string& group : groups)
    if (std::ranges::find(known, group) == known.end())
      throw Error(ErrorKind::usage, "--freeze: unknown parameter group '{}'", group).advise("use " + join_or(known));
  if (std::set(groups.begin(), groups.end()).size() == known.size())
    throw Error(ErrorKind::usage, "--freeze: every group is frozen, nothing is left to train");
  return groups;
}

} // namespace

int bench_ragged(Arguments arguments) {
  Options options(
      "bench ragged [--device D] [--packs LIST] [--samples N] [--passes N] [--peer HOW] [--json]",
      "Train on a stream of synthetic samples with the lengths of instruction tuning: 47 % images repeated 8\n"
      "times, 39 % videos of 1 to 64 frames, 14 % text-only; texts of 24 to 1024 tokens; tokens and pixels are\n"
      "random. Everything counts: packing, staging, copies, forward, backward, clip and AdamW. Each pass has new\n"
      "samples; the first one captures most CUDA graphs. whole passes: all steps of the later ones, those that\n"
      "still capture included. steady: of these, the steps that only replay. The peer takes the same passes, the\n"
      "first one to warm up, in batches of at most 256 frames, with lengths that differ by at most 256 tokens; it\n"
      "captures nothing, so that its steady state is its whole passes. The losses of both on the first pack must\n"
      "agree within 1 %.",
      "bench ragged --packs 256:5760,512:11520");
  with_peer_option(with_training_options(options), ragged_peer)
      .value("shape", "NAME", "tiny, quickstart, 135m (default) or 1.7b")
      .value("packs", "LIST", fmt::format("FRAMES:TOKENS of a pack, which is one step; default {}", default_packs))
      .value("samples", "N", "samples per pass; default 512")
      .value("passes", "N", "number of passes; default 4")
      .value("freeze", "NAMES", "parameter groups to freeze: vision, decoder or connector")
      .value("workers", "N", "threads that make samples; default: one per core but one")
      .value("seed", "N", "seed of the samples; default 42");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  bench::RaggedRequest request;
  request.shape = parsed->value_or("shape", request.shape);
  request.packs = split(parsed->value_or("packs", default_packs), ',');
  request.samples = parsed->integer_or("samples", request.samples);
  request.passes = parsed->integer_or("passes", request.passes);
  request.workers = parsed->integer_or("workers", request.workers);
  request.seed = static_cast<uint64_t>(parsed->integer_or("seed", static_cast<int64_t>(request.seed)));
  request.peer = peer_of(*parsed, ragged_peer);
  if (const auto names = parsed->value("freeze")) request.freeze = frozen_groups(*names);
  if (!request.freeze.empty() && !request.peer.empty())
    throw Error(ErrorKind::usage, "--freeze and --peer are mutually exclusive: the peer trains all groups");
  read_training_options(*parsed, request);

  const auto registry = open_registry(*parsed);
  const auto report =
      with_progress([&](const auto& progress) { return bench::measure_ragged(request, *registry, progress); });
  return show(*parsed,
              {{"bench", "ragged"},
               {"device", request.device},
               {"shape", request.shape},
               {"seed", request.seed},
               {"peer", request.peer}},
              report, print_ragged);
}

} // namespace fvlm::cli
