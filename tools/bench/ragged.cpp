#include "bench/ragged.h"

#include "base/error.h"
#include "bench/pack_file.h"
#include "bench/peer.h"
#include "bench/synthetic_stream.h"
#include "data/stream/loader.h"
#include "feed/packer.h"
#include "feed/staging.h"
#include "model/execution.h"
#include "model/loading.h"
#include "ops/host_memory.h"
#include "train/memory.h"
#include "train/peak_memory.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace fvlm::bench {
namespace {

using Part = RaggedReport::Part;

constexpr int64_t packs_ahead = 4; // that fit into the loader's memory

PackSize pack_named(const std::string& name) {
  PackSize size;
  const char* const end = name.data() + name.size();
  const auto frames = std::from_chars(name.data(), end, size.frames);
  const bool parted = frames.ec == std::errc() && frames.ptr != end && *frames.ptr == ':';
  const auto rows = parted ? std::from_chars(frames.ptr + 1, end, size.rows) : frames;
  if (!parted || rows.ec != std::errc() || rows.ptr != end)
    throw Error(ErrorKind::usage, "'{}' is no size of a pack", name).advise("FRAMES:TOKENS, as in 512:11520");
  if (size.frames < SyntheticStream::max_frames || size.rows < SyntheticStream::max_frames + SyntheticStream::max_text)
    throw Error(ErrorKind::usage, "a pack of {} does not hold the longest sample", name)
        .advise("{}:{} or more", SyntheticStream::max_frames, SyntheticStream::max_frames + SyntheticStream::max_text);
  return size;
}

class Stream {
 public:
  Stream(const RaggedRequest& request, Registry& registry, const Progress& progress)
      : request_(request), registry_(registry), progress_(progress), device_(model::device_named(request.device)),
        model_(models_.of(shape_named(request.shape))) {}

  RaggedReport::Row measure(const std::string& packs, std::vector<std::string>& choices) {
    RaggedReport::Row row;
    row.packs = packs;
    row.capacity = pack_named(packs);
    train::PeakMemory peak(device_, std::numeric_limits<int64_t>::max());
    try {
      train(row, peak, choices);
    } catch (const std::exception& error) {
      if (!train::is_out_of_memory(error)) throw;
      row.problem = "out of memory";
    }
    peak.give_back();
    return row;
  }

  // After the engine, whose memory the peer may need.
  RaggedReport::Side compare(const RaggedReport::Row& row) {
    RaggedReport::Side side;
    const std::filesystem::path file = scratch_ / "stream.safetensors";
    write_stream(file);
    std::vector<std::string> arguments{"--model",  model_.string(),
                                       "--stream", file.string(),
                                       "--first",  first_pack(row).string(),
                                       "--device", request_.device,
                                       "--rate",   fmt::format("{}", request_.rate)};
    if (train::type_of(request_.precision) == at::kBFloat16) arguments.insert(arguments.end(), {"--dtype", "bf16"});
    Peer peer(request_.peer, arguments);
    side.first_loss = number_in(peer, peer.ask(0), "loss");
    require_same_loss(row.first_loss, side.first_loss, loss_tolerance_of_bf16, "the first pack");
    for (int64_t pass = 0; pass < request_.passes; ++pass) {
      progress_(fmt::format("the peer, pass {}", pass + 1), 0, request_.samples);
      const auto answer = peer.ask(request_.samples);
      side.problem = answer.is_object() ? answer.value("problem", "") : "";
      if (!side.problem.empty()) return side;
      const auto count = [&](const char* name) { return static_cast<int64_t>(number_in(peer, answer, name)); };
      Part& part = side.passes.emplace_back();
      part.steps = count("steps");
      part.samples = count("samples");
      part.frames = count("frames");
      part.tokens = count("tokens");
      part.rows = count("rows");
      part.computed_rows = count("computed_rows");
      part.seconds = number_in(peer, answer, "seconds");
      side.peak_bytes = count("peak_bytes");
    }
    side.sum_up();
    side.steady = side.whole;
    return side;
  }

 private:
  static double number_in(Peer& peer, const nlohmann::json& answer, const char* name) {
    const auto found = answer.is_object() ? answer.find(name) : answer.end();
    if (found == answer.end() || !found->is_number()) peer.fail_with_answer(name);
    return found->get<double>();
  }

  std::filesystem::path first_pack(const RaggedReport::Row& row) const {
    return scratch_ / (row.packs + ".safetensors");
  }

  // The peer's data: all passes.
  void write_stream(const std::filesystem::path& file) const {
    const Shape& shape = shape_named(request_.shape);
    const SyntheticStream stream(request_.passes * request_.samples, shape.frame, shape.vocabulary(), request_.seed);
    std::vector<int64_t> frames, lengths, ids, shifts;
    const Order order = Order::once(stream.sizes());
    for (auto state = order.begin(); const auto drawn = order.next(state);) {
      const Sample sample = stream.measure(*drawn);
      const auto& text = sample.texts.front().ids;
      frames.push_back(sample.frames);
      lengths.push_back(std::ssize(text));
      ids.insert(ids.end(), text.begin(), text.end());
      for (int64_t frame = 0; frame < sample.frames; ++frame)
        shifts.push_back(SyntheticStream::shift(drawn->sample, frame / sample.copies));
    }
    model::write_tensors(file, {{"frame_counts", at::tensor(frames, at::kLong)},
                                {"text_lengths", at::tensor(lengths, at::kLong)},
                                {"input_ids", at::tensor(ids, at::kLong)},
                                {"frame_shifts", at::tensor(shifts, at::kLong)},
                                {"size", at::tensor({shape.frame}, at::kLong)},
                                {"noise", at::tensor(stream.noise())}});
  }

  void write_first(const HostPack& host, const RaggedReport::Row& row) const {
    train::SyntheticPack pack{host, {}};
    for (const PackedSample& packed : host.samples) pack.samples.push_back(packed.sample);
    write_pack(pack, shape_named(request_.shape).frame, first_pack(row));
  }

  void train(RaggedReport::Row& row, train::PeakMemory& peak, std::vector<std::string>& choices) {
    const PackSize& capacity = row.capacity;
    const Shape& shape = shape_named(request_.shape);
    const plan::Plan plan =
        synthetic_plan(request_, shape.frame, SyntheticStream::max_frames, SyntheticStream::max_text);
    Training training(plan, registry_, device_, model_, capacity, 0);
    peak.begin(std::numeric_limits<int64_t>::max());

    BatchPlan batches;
    batches.batch = {.samples = {}, .tokens = capacity.rows, .frames = capacity.frames};
    batches.capacity = capacity;
    const int64_t wanted = request_.samples * request_.passes;
    // Includes a margin after the measured samples, so that the packer's window is full to the end.
    const SyntheticStream samples(wanted + 2 * batches.window, shape.frame, shape.vocabulary(), request_.seed);
    const Order order = Order::once(samples.sizes());
    const auto bytes = static_cast<uint64_t>(capacity.frames * samples.frame_elements());
    DataLoaderOptions options;
    options.workers = static_cast<int>(request_.workers);
    options.memory = packs_ahead * bytes;
    options.allocate = feed::staging_for(device_);
    StreamSteps steps(plan, training);
    DataLoader loader(samples, order, batches, feed::choose_packer(registry_, plan.kernels["packer"], capacity),
                      options, Composer::start(batches, order));
    for (int64_t done = 0; done < wanted; done += steps.all.back().samples) {
      progress_(row.packs, done, wanted);
      const auto loaded = loader.next();
      if (!loaded) throw Error(ErrorKind::internal, "the stream has ended").at(row.packs);
      if (!request_.peer.empty() && done == 0) {
        write_first(loaded->pack, row);
        steps.pass_over();
      }
      steps.take(*loaded);
    }
    steps.read_all();
    row.first_loss = steps.first_loss;
    row.last_loss = steps.last_loss;
    progress_(row.packs, wanted, wanted);
    row.peak_bytes = training.kernels() > 0 ? peak.held() : peak.peak();
    sum_up(steps.all, row);
    choices = training.choices();
  }

  void sum_up(const std::vector<Part>& steps, RaggedReport::Row& row) const {
    int64_t done = 0;
    const auto pass_of = [&] { return static_cast<size_t>(done / request_.samples); };
    for (const Part& step : steps) {
      if (pass_of() > 0 && step.replayed()) row.steady += step;
      row.classes += step.new_classes;
      row.passes.resize(pass_of() + 1);
      row.passes.back() += step;
      done += step.samples;
    }
    row.Side::sum_up();
    if (row.steady.steps == 0) return;
    const double a_sample = 1 / row.steady.a_second(row.steady.samples);
    done = 0;
    for (const Part& step : steps) {
      auto& lost = row.passes[pass_of()].lost_seconds;
      lost = lost.value_or(0) + (step.replayed() ? 0 : step.seconds - static_cast<double>(step.samples) * a_sample);
      done += step.samples;
    }
  }

  const RaggedRequest& request_;
  Registry& registry_;
  const Progress& progress_;
  at::Device device_;
  SyntheticModels models_;
  const std::filesystem::path& model_;
  ScratchFolder scratch_;
};

nlohmann::ordered_json json_of(const Part& part) {
  return {{"steps", part.steps},
          {"samples", part.samples},
          {"seconds", part.seconds},
          {"samples_per_second", part.a_second(part.samples)},
          {"frames_per_second", part.a_second(part.frames)},
          {"text_tokens_per_second", part.a_second(part.tokens)},
          {"rows", part.rows},
          {"computed_rows", part.computed_rows}};
}

nlohmann::ordered_json json_of(const Part& part, const RaggedReport::Row& row) {
  nlohmann::ordered_json json = json_of(part);
  json.update({{"fill_of_frames", row.fill_of_frames(part)},
               {"fill_of_rows", row.fill_of_rows(part)},
               {"new_classes", part.new_classes},
               {"recorded", part.captured},
               {"parts_s", part.parts}});
  if (part.lost_seconds) json["lost_s"] = *part.lost_seconds;
  return json;
}

// What the tables name, of either side.
template <class ToJson>
void add_passes(const RaggedReport::Side& side, const ToJson& to_json, nlohmann::ordered_json& json) {
  for (const Part& pass : side.passes) json["passes"].push_back(to_json(pass));
  json["first_pass"] = to_json(side.passes.front());
  json["whole_passes"] = to_json(side.whole);
  json["steady"] = side.steady.steps > 0 ? to_json(side.steady) : nlohmann::ordered_json();
  json["peak_bytes"] = side.peak_bytes;
  json["first_loss"] = side.first_loss;
}

double share(int64_t used, int64_t steps, int64_t capacity) {
  return static_cast<double>(used) / static_cast<double>(steps * capacity);
}

} // namespace

void RaggedReport::Side::sum_up() {
  for (size_t pass = 1; pass < passes.size(); ++pass) whole += passes[pass];
}

double RaggedReport::ratio_of_whole(const Row& row) const {
  return row.whole.a_second(row.whole.samples) / peer->whole.a_second(peer->whole.samples);
}

std::optional<double> RaggedReport::ratio_of_steady(const Row& row) const {
  if (row.steady.steps == 0) return {};
  return row.steady.a_second(row.steady.samples) / peer->steady.a_second(peer->steady.samples);
}

double RaggedReport::Row::fill_of_frames(const Part& part) const {
  return share(part.frames, part.steps, capacity.frames);
}

double RaggedReport::Row::fill_of_rows(const Part& part) const {
  return share(part.rows, part.steps, capacity.rows);
}

RaggedReport measure_ragged(const RaggedRequest& request, Registry& registry, const Progress& progress) {
  if (request.samples < 1 || request.passes < 2 || request.workers < 0)
    throw Error(ErrorKind::usage, "expected --samples of 1 or more, --passes of 2 or more, --workers of 0 or more");
  shape_named(request.shape).require_whole_frames();
  for (const std::string& packs : request.packs) (void)pack_named(packs);
  const c10::InferenceMode without_autograd;
  ops::keep_freed_memory();
  RaggedReport report;
  Stream stream(request, registry, progress);
  for (const std::string& packs : request.packs) report.rows.push_back(stream.measure(packs, report.choices));
  const auto measured = std::find_if(report.rows.rbegin(), report.rows.rend(),
                                     [](const RaggedReport::Row& row) { return row.problem.empty(); });
  if (!request.peer.empty() && measured != report.rows.rend()) report.peer = stream.compare(*measured);
  return report;
}

nlohmann::ordered_json RaggedReport::json() const {
  nlohmann::ordered_json document{{"kernels", choices}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    nlohmann::ordered_json one{{"packs", row.packs}};
    if (!row.problem.empty()) {
      one["problem"] = row.problem;
    } else {
      add_passes(
          row, [&row](const Part& part) { return json_of(part, row); }, one);
      one["classes"] = row.classes;
      one["last_loss"] = row.last_loss;
      if (peer && peer->problem.empty()) {
        one["ratio_of_whole_passes"] = ratio_of_whole(row);
        if (const auto steady = ratio_of_steady(row)) one["ratio_of_steady"] = *steady;
      }
    }
    document["rows"].push_back(std::move(one));
  }
  if (!peer) return document;
  nlohmann::ordered_json& side = document["peer_side"];
  if (peer->problem.empty())
    add_passes(
        *peer, [](const Part& part) { return json_of(part); }, side);
  else
    side = {{"first_loss", peer->first_loss}, {"problem", peer->problem}};
  return document;
}

} // namespace fvlm::bench
