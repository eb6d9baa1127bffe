// See capability.hpp.
#include "daemon/base/capability.hpp"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace probed {

bool has_capability(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[capability / 32].effective >> (capability % 32) & 1) != 0;
}

}  // namespace probed
