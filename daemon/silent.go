package daemon

import "golang.org/x/sys/unix"

// silentFileSystems change without this system's doing: another host writes, or
// a server of its own. inotify takes a watch on them and tells of local changes
// alone. The numbers are statfs's; unix has no names for the last ones.
var silentFileSystems = map[uint32]string{
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC: "SMB",
	unix.SMB2_SUPER_MAGIC: "SMB",
	unix.AFS_SUPER_MAGIC:  "AFS",
	unix.CODA_SUPER_MAGIC: "Coda",
	unix.CEPH_SUPER_MAGIC: "Ceph",
	unix.V9FS_MAGIC:       "9p",
	unix.FUSE_SUPER_MAGIC: "FUSE",
	0x786f4256:            "a VirtualBox share",
	0x0bd00bd0:            "Lustre",
	0x47504653:            "GPFS",
}

func silentFileSystem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return ""
	}
	return silentFileSystems[uint32(st.Type)]
}
