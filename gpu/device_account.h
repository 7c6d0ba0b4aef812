// What the driver knows of a device's use, through NVML where the machine has it.
#pragma once

#include <optional>
#include <string>

#include "spillway/device.h"

namespace spillway::cuda {

class DeviceAccount {
 public:
  // Of the device at this PCI address, "0000:17:00.0". No NVML, or none that knows the device: no account.
  explicit DeviceAccount(const std::string& pci_address);
  ~DeviceAccount();
  DeviceAccount(const DeviceAccount&) = delete;
  DeviceAccount& operator=(const DeviceAccount&) = delete;

  // Thread-safe.
  std::optional<DeviceUse> use() const;

 private:
  void* library_ = nullptr;
  void* device_ = nullptr;  // NVML's handle; nullptr: no account
};

}  // namespace spillway::cuda
