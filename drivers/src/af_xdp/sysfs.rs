//! What sysfs has of a device: of the one in this thread's network namespace, whoever has mounted /sys.
//!
//! Owns: the open folder of one device. Never does: write. Invariant: it is the folder of the interface that was looked
//! up, and stays that when the interface gets another name; never that of another namespace's interface of this name.
//!
//! A sysfs shows the interfaces of the network namespace in which it was mounted: under `nsenter --net`, or in a thread
//! after setns(2), /sys/class/net is still that of the old one. So a sysfs is made that nobody else sees (fsopen(2),
//! fsmount(2)), for which the kernel takes the caller's namespace. Where that can't be had (before Linux 5.2, or without
//! CAP_SYS_ADMIN), the folder in /sys must have the interface's index and address.

use std::{fs::File, io, io::Read as _, os::fd::OwnedFd};

use rustix::{
    fs::{CWD, Dir, Mode, OFlags, StatVfsMountFlags, openat, statvfs},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

const MOUNTED: &str = "/sys/class/net";

/// The folder of a device, as `/sys/class/net/NAME` is one (Documentation/ABI/testing/sysfs-class-net of the kernel).
pub(super) struct DeviceFolder(OwnedFd);

impl DeviceFolder {
    /// Opens that of an interface of the calling thread's network namespace.
    pub(super) fn of(name: &str, index: u32, mac: [u8; 6]) -> io::Result<Self> {
        let found = own_sysfs().and_then(|sysfs| Self::at(&sysfs, &format!("class/net/{name}")));
        match found {
            // Without a look at it, another interface could have got the name meanwhile.
            Ok(folder) if folder.index() == Some(index) => Ok(folder),
            _ => Self::mounted(&format!("{MOUNTED}/{name}"), index, mac),
        }
    }

    /// The same by its path in /sys, if that is the interface.
    fn mounted(path: &str, index: u32, mac: [u8; 6]) -> io::Result<Self> {
        let folder = Self::at(CWD, path).ok();
        // Every namespace has a lo of index 1 and no address; that these are taken for each other does no harm, for they
        // have one queue each and no interrupts.
        folder.filter(|folder| folder.index() == Some(index) && folder.has_address(mac)).ok_or_else(|| {
            io::Error::other(format!(
                "{path} is missing or another device: this /sys is not of the interface's network namespace"
            ))
        })
    }

    fn at(from: impl std::os::fd::AsFd, path: &str) -> io::Result<Self> {
        Ok(Self(openat(from, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    fn index(&self) -> Option<u32> {
        self.number("ifindex")
    }

    /// Whether the device has this address, as far as it has one: links without one are zeroes to ioctl(2).
    fn has_address(&self, mac: [u8; 6]) -> bool {
        let Some(text) = self.text("address") else { return false };
        let bytes: Option<Vec<_>> = text
            .split(':')
            .filter(|byte| !byte.is_empty())
            .map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect();
        bytes
            .is_some_and(|bytes| mac.iter().zip(bytes.iter().chain(&[0; 6])).all(|(one, other)| one == other))
    }

    /// Opens a file of it to be read and written.
    pub(super) fn open(&self, file: &str) -> io::Result<File> {
        Ok(openat(&self.0, file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    /// How many queues of a kind, `rx-` or `tx-`, it has; 1 if it does not tell.
    pub(super) fn queues(&self, kind: &str) -> u32 {
        let folder = Self::at(&self.0, "queues").and_then(|folder| Ok(Dir::read_from(folder.0)?));
        let Ok(entries) = folder else { return 1 };
        let is_one = |entry: &rustix::fs::DirEntry| entry.file_name().to_bytes().starts_with(kind.as_bytes());
        entries.flatten().filter(is_one).count().max(1) as u32
    }

    /// The names of the devices above it, such as a bridge or bond that it is in (`upper_*`).
    pub(super) fn names_above(&self) -> Vec<String> {
        let folder = Self::at(&self.0, ".").and_then(|folder| Ok(Dir::read_from(folder.0)?));
        let Ok(entries) = folder else { return Vec::new() };
        let upper = |entry: rustix::fs::DirEntry| {
            Some(entry.file_name().to_str().ok()?.strip_prefix("upper_")?.to_owned())
        };
        entries.flatten().filter_map(upper).collect()
    }

    /// The NUMA node of the device. `None` for virtual ones and where the firmware does not tell.
    pub(super) fn numa_node(&self) -> Option<u32> {
        self.number("device/numa_node") // "-1" is no u32, hence None.
    }

    fn number(&self, file: &str) -> Option<u32> {
        self.text(file)?.parse().ok()
    }

    fn text(&self, file: &str) -> Option<String> {
        let mut text = String::new();
        let fd = openat(&self.0, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        File::from(fd).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }
}

/// A sysfs of the calling thread's network namespace, mounted nowhere. It can be written to only where /sys can: one that
/// an administrator has made read-only for this process is so on purpose.
fn own_sysfs() -> io::Result<OwnedFd> {
    let is_open = statvfs(MOUNTED).is_ok_and(|of| !of.f_flag.contains(StatVfsMountFlags::RDONLY));
    let access = if is_open { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_RDONLY };
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, safe | access)?)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::PathBuf, process};

    use super::*;

    /// What stands for a device's folder, deleted when dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("sheafio-{}-{name}", process::id()));
            fs::create_dir_all(path.join("device")).unwrap();
            for queue in ["rx-0", "rx-1", "rx-2", "tx-0"] {
                fs::create_dir_all(path.join("queues").join(queue)).unwrap();
            }
            let folder = Self(path);
            folder.write("ifindex", "7\n");
            folder.write("address", "02:00:00:00:0a:0b\n");
            folder.write("device/numa_node", "1\n");
            folder
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), text).unwrap();
        }

        fn opened(&self, index: u32, mac: [u8; 6]) -> io::Result<DeviceFolder> {
            DeviceFolder::mounted(self.0.to_str().unwrap(), index, mac)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MAC: [u8; 6] = [2, 0, 0, 0, 0x0a, 0x0b];

    #[test]
    fn a_folder_of_another_device_is_refused() {
        let folder = Folder::new("refused");
        assert!(folder.opened(7, MAC).is_ok());
        for (index, mac) in [(8, MAC), (7, [2, 0, 0, 0, 0x0a, 0x0c]), (7, [0; 6])] {
            let error = folder.opened(index, mac).err().unwrap().to_string();
            assert!(error.contains("not of the interface's network namespace"), "{error}");
        }
        // A link without addresses.
        folder.write("address", "\n");
        assert!(folder.opened(7, [0; 6]).is_ok());
        assert!(folder.opened(7, MAC).is_err());
        folder.write("address", "no address\n");
        assert!(folder.opened(7, MAC).is_err());
        fs::remove_file(folder.0.join("ifindex")).unwrap();
        assert!(folder.opened(7, MAC).is_err());
    }

    #[test]
    fn queues_and_node_are_read() {
        let folder = Folder::new("read");
        let device = folder.opened(7, MAC).unwrap();
        assert_eq!([device.queues("rx-"), device.queues("tx-"), device.queues("no-")], [3, 1, 1]);
        assert_eq!(device.numa_node(), Some(1));
        folder.write("device/numa_node", "-1\n");
        assert_eq!(device.numa_node(), None);
        fs::remove_dir_all(folder.0.join("queues")).unwrap();
        assert_eq!(device.queues("rx-"), 1);
    }
}
