#include "ops/timing_cache.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "device/probe.h"
#include "plugin/answer_files.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <dlfcn.h>

namespace fvlm::ops {
namespace fs = std::filesystem;
namespace {

std::string text_of(fvlm_dtype dtype) {
  return fmt::format("{}.{}.{}", dtype.code, dtype.bits, dtype.lanes);
}

std::string fields(const fvlm_attention_query& query) {
  return fmt::format("dtype={} causal={} heads={}/{}x{} longest={}/{} rows={}/{} segments={} rotary={} theta={} "
                     "scale={} backward={} even={} guests={} alone={}",
                     text_of(query.dtype), query.causal, query.heads_q, query.heads_kv, query.head_dim,
                     query.max_seqlen_q, query.max_seqlen_kv, query.tokens_q, query.tokens_kv, query.segments,
                     query.rotary_dim, query.rope_theta, query.scale, query.needs_backward, query.even, query.guests,
                     query.queries_alone);
}

std::string fields(const fvlm_paged_attention_query& query) {
  return fmt::format("paged dtype={} heads={}/{}x{} page={} scale={} rows={} sequences={} pages={}/{}",
                     text_of(query.dtype), query.heads_q, query.heads_kv, query.head_dim, query.page_rows, query.scale,
                     query.rows, query.sequences, query.max_pages, query.pages);
}

std::string fields(const fvlm_loss_query& query) {
  return fmt::format("dtype={} gradient={} rows={} width={} vocabulary={} d_hidden={} d_weight={} softcap={}",
                     text_of(query.dtype), text_of(query.gradient_dtype), query.tokens, query.width, query.vocab,
                     query.needs_d_hidden, query.needs_d_weight, query.softcap);
}

std::string fields(const fvlm_kernels_query& query) {
  return fmt::format("op={} dtype={} gradient={} options={} rows={} width={} inner={} pairs={} heads={}x{} rotary={} "
                     "theta={} epsilon={} segments={}x{} taps={} keys={}x{}",
                     operation_name(query.op), text_of(query.dtype), text_of(query.gradient_dtype), query.options,
                     query.rows, query.width, query.inner, query.pairs, query.heads, query.head_dim, query.rotary_dim,
                     query.rope_theta, query.epsilon, query.segments, query.max_seqlen, query.taps, query.key_heads,
                     query.key_dim);
}

// The library that contains this code and the reference plugin: libfvlm_engine.so.
fs::path own_library() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&own_library), &info) != 0 ? info.dli_fname : "/proc/self/exe";
}

std::string device_text(at::Device device) {
  if (device.is_cpu()) {
    const auto cpu = device::probe_cpu();
    return fmt::format("{} ({}), {} threads", cpu.name, join(cpu.features, " "), at::get_num_threads());
  }
  const auto cuda = device::probe_cuda();
  const auto& gpu = cuda.devices.at(static_cast<size_t>(std::max<int>(device.index(), 0)));
  return fmt::format("{}, {} bytes, driver {}", gpu.name, gpu.memory_bytes, cuda.driver_version);
}

} // namespace

const std::string& TimingCache::environment() {
  if (environment_.empty())
    environment_ = fmt::format("fvlm-engine {}, LibTorch {}, {}", FVLM_VERSION,
                               sha256_hex(at::show_config()).substr(0, 16), device_text(device_));
  return environment_;
}

const std::string& TimingCache::identity(const LoadedPlugin& plugin) {
  std::string& identity = identities_[plugin.name()];
  if (identity.empty())
    identity =
        plugin.sha256.empty() ? sha256_file(plugin.library.empty() ? own_library() : plugin.library) : plugin.sha256;
  return identity;
}

void TimingCache::warn_once(const fs::path& file, const std::exception& error) {
  if (!warned_)
    log_warning("{}: {}; times that are not cached are measured again", file.string(),
                std::string(error.what()).substr(0, 200));
  warned_ = true;
}

// Empty where there is no cache folder.
fs::path TimingCache::file_of(const std::string& question) {
  try {
    return answer_files::file_of(question);
  } catch (const Error& error) {
    warn_once("the cache of plugin times", error);
    return {};
  }
}

// The cached entries of the query, by plugin; an empty object where there are none.
nlohmann::json TimingCache::load(const fs::path& file, const std::string& question) {
  try {
    if (!file.empty()) return answer_files::load(file, question);
  } catch (const std::exception& error) {
    warn_once(file, error);
  }
  return nlohmann::json::object();
}

void TimingCache::store(const fs::path& file, const std::string& question, const std::string& plugin,
                        const nlohmann::json& time) {
  if (file.empty()) return;
  try {
    answer_files::store(file, question, plugin, time);
  } catch (const std::exception& error) {
    warn_once(file, error);
  }
}

Measurement TimingCache::cached_or_measured(const LoadedPlugin& plugin, const std::string& query_text,
                                            const std::function<double()>& measure) {
  const std::string question = fmt::format("{}; {}", query_text, environment());
  const fs::path file = file_of(question);
  nlohmann::json time{{"version", plugin.manifest.version}, {"sha256", identity(plugin)}};
  const nlohmann::json plugins = load(file, question);
  if (const auto known = plugins.find(plugin.name()); known != plugins.end() && known->is_object())
    if (const auto seconds = known->find("seconds"); seconds != known->end() && seconds->is_number())
      if (time["seconds"] = *seconds; time == *known && seconds->get<double>() > 0)
        return {seconds->get<double>(), true};
  const double seconds = measure();
  time["seconds"] = seconds;
  store(file, question, plugin.name(), time);
  return {seconds};
}

template <class Table>
Measurement TimingCache::of(const Candidate<Table>& candidate, const typename KindOf<Table>::Query& query,
                            uint32_t flags) {
  const std::string query_text = fmt::format("{} {} flags={}", KindOf<Table>::family, fields(query), flags);
  return cached_or_measured(*candidate.plugin, query_text, [&] { return measure(candidate, query, device_, flags); });
}

template Measurement TimingCache::of(const Candidate<fvlm_attention_v1>&, const fvlm_attention_query&, uint32_t);
template Measurement TimingCache::of(const Candidate<PagedAttentionTable>&, const fvlm_paged_attention_query&,
                                     uint32_t);
template Measurement TimingCache::of(const Candidate<fvlm_loss_v1>&, const fvlm_loss_query&, uint32_t);
template Measurement TimingCache::of(const Candidate<fvlm_kernels_v1>&, const fvlm_kernels_query&, uint32_t);

} // namespace fvlm::ops
