// Finds the LibTorch inside a Python installation and loads it into this process.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace fvlm::cli {

struct TorchLibrary {
  std::filesystem::path folder;         // site-packages/torch
  std::string version;                  // "2.11.0+cu130"
  std::string found_by;                 // "the cache", "/usr/bin/python3"
  std::vector<std::string> passed_over; // LibTorches looked at before that were not taken, each with the reason
};

// Looks at FVLM_TORCH, the path noted in the build tree, the per-machine cache, and the python3 of PATH, in this order.
// Its code runs with the user's rights, so that every folder on the way to it is held to what plugins are held to
// (plugin/trust.h), and the working folder has no say in it. Throws Error(device) that names every place it looked at
// and what was wrong there.
TorchLibrary find_torch();

// Loads its libraries for all that follow. Once a process.
void load_torch(const TorchLibrary& library);
// Its CUDA half, which most verbs do without; before the first tensor is made.
void load_torch_cuda(const TorchLibrary& library);
// The same where there are a GPU and a LibTorch for it. Plugins for GPUs then open here as they do where one trains:
// they find the CUDA libraries that LibTorch has brought.
void load_torch_cuda_if_there();

} // namespace fvlm::cli
