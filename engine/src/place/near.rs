//! The memory node of RDMA devices.

use std::{fs, path::Path};

use super::NumaNode;

impl NumaNode {
    /// Returns the node of `device`, or that of all RDMA devices when none is named. `None`: the machine does not say, or
    /// the devices lie on several nodes. `sys` is where sysfs is mounted.
    #[must_use]
    pub fn of_devices(sys: &Path, device: Option<&str>) -> Option<Self> {
        let folder = sys.join("class/infiniband");
        // -1 on a machine of one node; software devices have no such file.
        let node = |name: &Path| {
            let text = fs::read_to_string(folder.join(name).join("device/numa_node")).ok()?;
            text.trim().parse().ok().map(Self)
        };
        if let Some(device) = device {
            return node(Path::new(device));
        }
        let mut nodes =
            fs::read_dir(&folder).ok()?.flatten().map(|entry| node(Path::new(&entry.file_name())));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_that_of_the_device_or_of_all() {
        let sys = std::env::temp_dir().join(format!("gimmal-near-{}", std::process::id()));
        let write = |device: &str, node: &str| {
            let folder = sys.join("class/infiniband").join(device).join("device");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("numa_node"), node).unwrap();
        };
        assert_eq!(NumaNode::of_devices(&sys, None), None);
        write("mlx5_0", "1\n");
        write("mlx5_1", "1\n");
        assert_eq!(NumaNode::of_devices(&sys, None), Some(NumaNode(1)));
        write("mlx5_2", "0\n");
        assert_eq!(NumaNode::of_devices(&sys, None), None);
        assert_eq!(NumaNode::of_devices(&sys, Some("mlx5_2")), Some(NumaNode(0)));
        write("mlx5_2", "-1\n");
        assert_eq!(NumaNode::of_devices(&sys, Some("mlx5_2")), None);
        assert_eq!(NumaNode::of_devices(&sys, Some("mlx5_9")), None);
        fs::remove_dir_all(sys).unwrap();
    }
}
