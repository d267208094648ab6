#include "plugin/plugin_cache.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "device/probe.h"
#include "plugin/answer_files.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace fvlm {
namespace {

using Bytes = std::vector<uint8_t>;

void warn_once(const std::exception& error) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    log_warning("the cache of what plugins measured: {}; it is measured again",
                std::string(error.what()).substr(0, 200));
}

std::string described(fvlm_device device) {
  if (device.type == FVLM_CPU) {
    const auto cpu = device::probe_cpu();
    return fmt::format("{} ({})", cpu.name, join(cpu.features, " "));
  }
  const auto cuda = device::probe_cuda();
  const auto& gpu = cuda.devices.at(static_cast<size_t>(std::max(device.id, 0)));
  return fmt::format("{}, {} bytes, driver {}", gpu.name, gpu.memory_bytes, cuda.driver_version);
}

// Probing takes a while, so once a device.
std::string environment_of(fvlm_device device) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<int32_t, int32_t>, std::string>;
  const std::lock_guard lock(mutex);
  std::string& environment = known[{device.type, device.id}];
  if (environment.empty()) environment = fmt::format("fvlm-engine {}, {}", FVLM_VERSION, described(device));
  return environment;
}

std::string question_of(fvlm_device device, const std::string& key) {
  return fmt::format("kept: {}; {}", key, environment_of(device));
}

std::string hex_of(const void* value, uint64_t size) {
  std::string text;
  for (uint64_t i = 0; i < size; ++i) text += fmt::format("{:02x}", static_cast<const uint8_t*>(value)[i]);
  return text;
}

std::optional<Bytes> bytes_of(const std::string& hex) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const int high = digit(hex[i]), low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return {};
    bytes.push_back(static_cast<uint8_t>(16 * high + low));
  }
  return bytes;
}

} // namespace

bool load_cached(const CachingPlugin& plugin, fvlm_device device, const std::string& key, void* value, uint64_t size) {
  if (plugin.identity.empty() || size > FVLM_MAX_CACHED) return false;
  try {
    const std::string question = question_of(device, key);
    const auto answers = answer_files::load(answer_files::file_of(question), question);
    const auto own = answers.find(plugin.name);
    if (own == answers.end() || !own->is_object() || own->value("sha256", nlohmann::json()) != plugin.identity)
      return false;
    const auto hex = own->find("value");
    if (hex == own->end() || !hex->is_string()) return false;
    const auto bytes = bytes_of(hex->get<std::string>());
    if (!bytes || bytes->size() != size) return false;
    std::memcpy(value, bytes->data(), size);
    return true;
  } catch (const std::exception& error) {
    warn_once(error);
    return false;
  }
}

void store_cached(const CachingPlugin& plugin, fvlm_device device, const std::string& key, const void* value,
                  uint64_t size) {
  if (plugin.identity.empty() || size > FVLM_MAX_CACHED) return;
  try {
    const std::string question = question_of(device, key);
    answer_files::store(answer_files::file_of(question), question, plugin.name,
                        {{"sha256", plugin.identity}, {"value", hex_of(value, size)}});
  } catch (const std::exception& error) {
    warn_once(error);
  }
}

} // namespace fvlm
