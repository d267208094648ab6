// Finds LibTorch in a Python installation and loads it into this process.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace fvlm::cli {

struct TorchLibrary {
  std::filesystem::path folder;         // site-packages/torch
  std::string version;                  // "2.11.0+cu130"
  std::string found_by;                 // "the cache", "/usr/bin/python3"
  std::vector<std::string> passed_over; // candidates that were rejected before, each with the reason
};

// Searches FVLM_TORCH, the path recorded in the build tree, the Python environment that the program is installed in,
// the per-machine cache, and the python3 of PATH, in this order. LibTorch's code runs with the user's rights, so every
// folder on the path to it has to pass the trust checks of plugins (plugin/trust.h), and the working folder has no
// influence. Throws Error(device) that lists every place it searched and what was wrong there.
TorchLibrary find_torch();

// Loads its libraries globally. Call it once per process.
void load_torch(const TorchLibrary& library);
// Loads its CUDA libraries, which most verbs do not need. Call it before the first tensor is created.
void load_torch_cuda(const TorchLibrary& library);
// The same where there are a GPU and a LibTorch for it. Plugins for GPUs then find the CUDA libraries that come with
// LibTorch, as they do in training.
void load_torch_cuda_if_available();

} // namespace fvlm::cli
