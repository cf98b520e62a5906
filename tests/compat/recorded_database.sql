BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0007');
CREATE TABLE bookings (
	id VARCHAR(16) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	nodes JSON NOT NULL, 
	starts_at DOUBLE NOT NULL, 
	ends_at DOUBLE NOT NULL, 
	projects JSON NOT NULL, 
	users JSON NOT NULL, 
	lead_s DOUBLE NOT NULL, 
	created_by TEXT NOT NULL, 
	note TEXT NOT NULL, 
	CONSTRAINT pk_bookings PRIMARY KEY (id)
);
CREATE TABLE departments (
	name VARCHAR(63) NOT NULL, 
	quota_permille INTEGER, 
	weight DOUBLE NOT NULL, 
	limit_permille INTEGER, 
	note TEXT NOT NULL, 
	CONSTRAINT pk_departments PRIMARY KEY (name)
);
INSERT INTO "departments" VALUES('science',2000,1.0,NULL,'');
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DOUBLE NOT NULL, 
	actor TEXT NOT NULL, 
	reason VARCHAR(32) NOT NULL, 
	message TEXT NOT NULL, 
	workload VARCHAR(16), 
	replica_index INTEGER, 
	target TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1.79538949090076398844e+09,'pool','CHANGED','created',NULL,NULL,'project default');
INSERT INTO "events" VALUES(2,1.79538949238269925122e+09,'pool','CHANGED','2 GPUs reported',NULL,NULL,'node vm');
INSERT INTO "events" VALUES(3,1.79538949243066787717e+09,'pool','CHANGED','seen for the first time',NULL,NULL,'user root');
INSERT INTO "events" VALUES(4,1.7953894943885250091e+09,'root','CHANGED','created',NULL,NULL,'department science');
INSERT INTO "events" VALUES(5,1.79538949597113347048e+09,'root','CHANGED','created',NULL,NULL,'project vision');
INSERT INTO "events" VALUES(6,1.79538949933694601062e+09,'root','CHANGED','role member',NULL,NULL,'user ada');
INSERT INTO "events" VALUES(7,1.79538950251233363156e+09,'root','CHANGED','token a3503132 made, role member',NULL,NULL,'user ada');
INSERT INTO "events" VALUES(8,1.79538950376878094676e+09,'root','SUBMITTED','submitted quick','wkb5vkqzkwz',NULL,'');
INSERT INTO "events" VALUES(9,1.79538950381116771699e+09,'pool','GRANTED','got GPUs on vm','wkb5vkqzkwz',0,'');
INSERT INTO "events" VALUES(10,1.79538950413069319728e+09,'pool','STARTED','started on vm','wkb5vkqzkwz',0,'');
INSERT INTO "events" VALUES(11,1.79538950417930960653e+09,'pool','EXITED','exited with status 0','wkb5vkqzkwz',0,'');
INSERT INTO "events" VALUES(12,1.79538950742506909366e+09,'root','SUBMITTED','submitted first','wjhn3zxzzsd',NULL,'');
INSERT INTO "events" VALUES(13,1.79538950745419502259e+09,'pool','GRANTED','got GPUs on vm','wjhn3zxzzsd',0,'');
INSERT INTO "events" VALUES(14,1.79538950771994924547e+09,'pool','STARTED','started on vm','wjhn3zxzzsd',0,'');
INSERT INTO "events" VALUES(15,1.79538950777568316456e+09,'pool','EXITED','exited with status 0','wjhn3zxzzsd',0,'');
INSERT INTO "events" VALUES(16,1.79538951199678683276e+09,'root','SUBMITTED','submitted fails','wrk6zq4yymr',NULL,'');
INSERT INTO "events" VALUES(17,1.79538951202457475663e+09,'pool','GRANTED','got GPUs on vm','wrk6zq4yymr',0,'');
INSERT INTO "events" VALUES(18,1.79538951220769453041e+09,'pool','STARTED','started on vm','wrk6zq4yymr',0,'');
INSERT INTO "events" VALUES(19,1.79538951224318552015e+09,'pool','RETRY','exited with status 3; will be run again','wrk6zq4yymr',0,'');
INSERT INTO "events" VALUES(20,1.79538951442284512517e+09,'pool','GRANTED','got GPUs on vm','wrk6zq4yymr',0,'');
INSERT INTO "events" VALUES(21,1.79538951455630874627e+09,'pool','STARTED','started on vm','wrk6zq4yymr',0,'');
INSERT INTO "events" VALUES(22,1795389514.63417,'pool','BACKOFF_EXHAUSTED','exited with status 3; no try is left of 1','wrk6zq4yymr',0,'');
INSERT INTO "events" VALUES(23,1.79538952303008937831e+09,'root','SUBMITTED','submitted digits-sweep','wa5rrv3qq3y',NULL,'');
INSERT INTO "events" VALUES(24,1.79538952307915163041e+09,'pool','GRANTED','got GPUs on vm','wa5rrv3qq3y',0,'');
INSERT INTO "events" VALUES(25,1.79538952307915163041e+09,'pool','GRANTED','got GPUs on vm','wa5rrv3qq3y',1,'');
INSERT INTO "events" VALUES(26,1.79538952336295294762e+09,'pool','STARTED','started on vm','wa5rrv3qq3y',0,'');
INSERT INTO "events" VALUES(27,1.79538952338463735579e+09,'pool','STARTED','started on vm','wa5rrv3qq3y',1,'');
INSERT INTO "events" VALUES(28,1.79538952473773813249e+09,'root','SUBMITTED','submitted gang','wq9vb9tnmq6',NULL,'');
INSERT INTO "events" VALUES(29,1.79538952474272251128e+09,'pool','GRANTED','got GPUs on vm','wq9vb9tnmq6',0,'');
INSERT INTO "events" VALUES(30,1.79538952483982872966e+09,'pool','STARTED','started on vm','wq9vb9tnmq6',0,'');
INSERT INTO "events" VALUES(31,1.79538952752532029151e+09,'pool','EXITED','exited with status 0','wa5rrv3qq3y',0,'');
INSERT INTO "events" VALUES(32,1.79538952755517625808e+09,'pool','GRANTED','got GPUs on vm','wa5rrv3qq3y',2,'');
INSERT INTO "events" VALUES(33,1.79538952765309262277e+09,'pool','EXITED','exited with status 0','wa5rrv3qq3y',1,'');
INSERT INTO "events" VALUES(34,1.79538952771368479728e+09,'pool','GRANTED','got GPUs on vm','wa5rrv3qq3y',3,'');
INSERT INTO "events" VALUES(35,1.79538952774428749083e+09,'pool','STARTED','started on vm','wa5rrv3qq3y',2,'');
INSERT INTO "events" VALUES(36,1.7953895279603538513e+09,'pool','STARTED','started on vm','wa5rrv3qq3y',3,'');
INSERT INTO "events" VALUES(37,1.79538952868537425989e+09,'root','SUBMITTED','submitted waits','wmjbe00tzws',NULL,'');
INSERT INTO "events" VALUES(38,1.79538953141436696055e+09,'root','SUBMITTED','submitted held','w8gdem79fe6',NULL,'');
INSERT INTO "events" VALUES(39,1.79538953153748750686e+09,'pool','EXITED','exited with status 0','wa5rrv3qq3y',2,'');
INSERT INTO "events" VALUES(40,1.79538953159035491943e+09,'pool','GRANTED','got GPUs on vm','wa5rrv3qq3y',4,'');
INSERT INTO "events" VALUES(41,1.79538953159035491943e+09,'pool','GRANTED','got GPUs on vm','w8gdem79fe6',0,'');
INSERT INTO "events" VALUES(42,1.79538953166474556924e+09,'pool','EXITED','exited with status 0','wa5rrv3qq3y',3,'');
INSERT INTO "events" VALUES(43,1.79538953175074434279e+09,'pool','GRANTED','got GPUs on vm','wa5rrv3qq3y',5,'');
INSERT INTO "events" VALUES(44,1.79538953192801618583e+09,'pool','STARTED','started on vm','wa5rrv3qq3y',4,'');
INSERT INTO "events" VALUES(45,1.79538953196273946754e+09,'pool','STARTED','started on vm','wa5rrv3qq3y',5,'');
INSERT INTO "events" VALUES(46,1.79538953502363634109e+09,'pool','EXITED','exited with status 0','wa5rrv3qq3y',5,'');
INSERT INTO "events" VALUES(47,1.79538953520986723898e+09,'pool','EXITED','exited with status 0','wa5rrv3qq3y',4,'');
INSERT INTO "events" VALUES(48,1.79538955130693793295e+09,'pool','STOPPED_BY_USER','asked to stop with 10 s of grace','wq9vb9tnmq6',0,'');
INSERT INTO "events" VALUES(49,1.79538955130693793295e+09,'pool','STOPPED_BY_USER','stopped','wq9vb9tnmq6',1,'');
INSERT INTO "events" VALUES(50,1.79538955130693793295e+09,'pool','STOPPED_BY_USER','stopped','wmjbe00tzws',0,'');
INSERT INTO "events" VALUES(51,1.79538955130693793295e+09,'pool','RELEASED','asked to stop with 10 s of grace','w8gdem79fe6',0,'');
INSERT INTO "events" VALUES(52,1.79538955130693793295e+09,'pool','RELEASED','succeeded','w8gdem79fe6',0,'');
INSERT INTO "events" VALUES(53,1.79538955147090101239e+09,'pool','STOPPED_BY_USER','stopped by user','wq9vb9tnmq6',0,'');
CREATE TABLE gpu_hours (
	family VARCHAR(8) NOT NULL, 
	step_s INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	user_name VARCHAR(63) NOT NULL, 
	node TEXT NOT NULL, 
	model TEXT NOT NULL, 
	allocated_s DOUBLE NOT NULL, 
	used_s DOUBLE NOT NULL, 
	idle_s DOUBLE NOT NULL, 
	measured_s DOUBLE NOT NULL, 
	requested_s DOUBLE NOT NULL, 
	leases INTEGER NOT NULL, 
	CONSTRAINT pk_gpu_hours PRIMARY KEY (family, step_s, at, project, user_name, node, model)
)
 WITHOUT ROWID

;
CREATE TABLE gpu_models (
	gpu_uuid TEXT NOT NULL, 
	model TEXT NOT NULL, 
	memory_mib BIGINT NOT NULL, 
	CONSTRAINT pk_gpu_models PRIMARY KEY (gpu_uuid)
)
 WITHOUT ROWID

;
INSERT INTO "gpu_models" VALUES('GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3','Tesla T4',16384);
INSERT INTO "gpu_models" VALUES('GPU-EMULATED-ed8b4587-1505-bba8-59e9-a32b589c54ae','Tesla T4',16384);
CREATE TABLE gpu_use (
	gpu_uuid TEXT NOT NULL, 
	step_s INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	node TEXT NOT NULL, 
	samples INTEGER NOT NULL, 
	busy_s DOUBLE NOT NULL, 
	utilisation_max DOUBLE NOT NULL, 
	memory_mean_mib DOUBLE NOT NULL, 
	memory_max_mib BIGINT NOT NULL, 
	energy_j DOUBLE, 
	temperature_max_c DOUBLE, 
	sm_clock_mean_mhz DOUBLE, 
	CONSTRAINT pk_gpu_use PRIMARY KEY (gpu_uuid, step_s, at)
)
 WITHOUT ROWID

;
CREATE TABLE heads (
	name VARCHAR(253) NOT NULL, 
	url TEXT NOT NULL, 
	certificate TEXT NOT NULL, 
	gcs_host TEXT NOT NULL, 
	gcs_port INTEGER NOT NULL, 
	added_at DOUBLE NOT NULL, 
	CONSTRAINT pk_heads PRIMARY KEY (name)
);
CREATE TABLE join_tokens (
	id VARCHAR(63) NOT NULL, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	created_by VARCHAR(63) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	uses_left INTEGER NOT NULL, 
	revoked_at DOUBLE, 
	note TEXT NOT NULL, 
	for_head BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_join_tokens PRIMARY KEY (id)
);
CREATE TABLE leadership (
	id INTEGER NOT NULL, 
	term BIGINT NOT NULL, 
	leader TEXT NOT NULL, 
	address TEXT NOT NULL, 
	since DOUBLE NOT NULL, 
	CONSTRAINT pk_leadership PRIMARY KEY (id)
);
INSERT INTO "leadership" VALUES(1,0,'','',0.0);
CREATE TABLE lease_shares (
	epoch INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	gpu_uuid TEXT NOT NULL, 
	gpu_index INTEGER NOT NULL, 
	permille INTEGER NOT NULL, 
	memory_mib BIGINT NOT NULL, 
	released_at DOUBLE, 
	CONSTRAINT pk_lease_shares PRIMARY KEY (epoch, position), 
	CONSTRAINT ck_lease_shares_permille CHECK (permille BETWEEN 1 AND 1000), 
	CONSTRAINT fk_lease_shares_epoch FOREIGN KEY(epoch) REFERENCES leases (epoch) ON DELETE CASCADE
);
INSERT INTO "lease_shares" VALUES(1,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,1000,16384,1.79538950417930960653e+09);
INSERT INTO "lease_shares" VALUES(2,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,1000,16384,1.79538950777568316456e+09);
INSERT INTO "lease_shares" VALUES(3,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,1000,16384,1.79538951224318552015e+09);
INSERT INTO "lease_shares" VALUES(4,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,1000,16384,1795389514.63417);
INSERT INTO "lease_shares" VALUES(5,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538952752532029151e+09);
INSERT INTO "lease_shares" VALUES(6,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538952765309262277e+09);
INSERT INTO "lease_shares" VALUES(7,0,'GPU-EMULATED-ed8b4587-1505-bba8-59e9-a32b589c54ae',1,1000,16384,1.79538955147090101239e+09);
INSERT INTO "lease_shares" VALUES(8,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538953153748750686e+09);
INSERT INTO "lease_shares" VALUES(9,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538953166474556924e+09);
INSERT INTO "lease_shares" VALUES(10,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538953520986723898e+09);
INSERT INTO "lease_shares" VALUES(11,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538955130693793295e+09);
INSERT INTO "lease_shares" VALUES(12,0,'GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3',0,250,4096,1.79538953502363634109e+09);
CREATE TABLE leases (
	epoch INTEGER NOT NULL, 
	workload VARCHAR(16) NOT NULL, 
	replica_index INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	user_name VARCHAR(63) NOT NULL, 
	node TEXT NOT NULL, 
	cpus DOUBLE NOT NULL, 
	memory_mib BIGINT NOT NULL, 
	permille INTEGER NOT NULL, 
	granted_at DOUBLE NOT NULL, 
	released_at DOUBLE, 
	sharing VARCHAR(32) DEFAULT '' NOT NULL, 
	compute VARCHAR(16) DEFAULT 'guarantee' NOT NULL, 
	fence_after_s DOUBLE, 
	CONSTRAINT pk_leases PRIMARY KEY (epoch)
);
INSERT INTO "leases" VALUES(1,'wkb5vkqzkwz',0,1,'default','root','vm',0.0,0,1000,1.79538950381116771699e+09,1.79538950417930960653e+09,'whole','guarantee',NULL);
INSERT INTO "leases" VALUES(2,'wjhn3zxzzsd',0,1,'vision','root','vm',0.0,0,1000,1.79538950745419502259e+09,1.79538950777568316456e+09,'whole','guarantee',NULL);
INSERT INTO "leases" VALUES(3,'wrk6zq4yymr',0,1,'default','root','vm',0.0,0,1000,1.79538951202457475663e+09,1.79538951224318552015e+09,'whole','guarantee',NULL);
INSERT INTO "leases" VALUES(4,'wrk6zq4yymr',0,2,'default','root','vm',0.0,0,1000,1.79538951442284512517e+09,1795389514.63417,'whole','guarantee',NULL);
INSERT INTO "leases" VALUES(5,'wa5rrv3qq3y',0,1,'default','root','vm',0.0,0,250,1.79538952307915163041e+09,1.79538952752532029151e+09,'advisory','guarantee',NULL);
INSERT INTO "leases" VALUES(6,'wa5rrv3qq3y',1,1,'default','root','vm',0.0,0,250,1.79538952307915163041e+09,1.79538952765309262277e+09,'advisory','guarantee',NULL);
INSERT INTO "leases" VALUES(7,'wq9vb9tnmq6',0,1,'default','root','vm',0.0,0,1000,1.79538952474272251128e+09,1.79538955147090101239e+09,'whole','guarantee',NULL);
INSERT INTO "leases" VALUES(8,'wa5rrv3qq3y',2,1,'default','root','vm',0.0,0,250,1.79538952755517625808e+09,1.79538953153748750686e+09,'advisory','guarantee',NULL);
INSERT INTO "leases" VALUES(9,'wa5rrv3qq3y',3,1,'default','root','vm',0.0,0,250,1.79538952771368479728e+09,1.79538953166474556924e+09,'advisory','guarantee',NULL);
INSERT INTO "leases" VALUES(10,'wa5rrv3qq3y',4,1,'default','root','vm',0.0,0,250,1.79538953159035491943e+09,1.79538953520986723898e+09,'advisory','guarantee',NULL);
INSERT INTO "leases" VALUES(11,'w8gdem79fe6',0,1,'default','root','vm',0.0,0,250,1.79538953159035491943e+09,1.79538955130693793295e+09,'advisory','guarantee',NULL);
INSERT INTO "leases" VALUES(12,'wa5rrv3qq3y',5,1,'default','root','vm',0.0,0,250,1.79538953175074434279e+09,1.79538953502363634109e+09,'advisory','guarantee',NULL);
CREATE TABLE members (
	node VARCHAR(253) NOT NULL, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	key_sha256 VARCHAR(64) NOT NULL, 
	address TEXT NOT NULL, 
	joined_at DOUBLE NOT NULL, 
	token_id VARCHAR(63) NOT NULL, 
	CONSTRAINT pk_members PRIMARY KEY (node)
);
CREATE TABLE meta (
	name VARCHAR(63) NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_meta PRIMARY KEY (name)
);
INSERT INTO "meta" VALUES('pool_id','e0b06dd111114949a62002bdfdfacaea');
INSERT INTO "meta" VALUES('created_at','1795389490.6617727');
INSERT INTO "meta" VALUES('looks_written','{"vm": 1795389551}');
CREATE TABLE node_use (
	node TEXT NOT NULL, 
	step_s INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	samples INTEGER NOT NULL, 
	cpu_s DOUBLE NOT NULL, 
	memory_mean_mib DOUBLE NOT NULL, 
	memory_max_mib BIGINT NOT NULL, 
	CONSTRAINT pk_node_use PRIMARY KEY (node, step_s, at)
)
 WITHOUT ROWID

;
CREATE TABLE nodes (
	name TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	cordon_reason TEXT NOT NULL, 
	report JSON NOT NULL, 
	sharing JSON DEFAULT '{}' NOT NULL, 
	labels JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (name)
);
INSERT INTO "nodes" VALUES('vm','up','','{"name":"vm","cpus":2.0,"memory_mib":24105,"gpus":[{"uuid":"GPU-EMULATED-194aaf6f-7c06-194e-91f4-2a6279adfcd3","index":0,"model":"Tesla T4","memory_mib":16384,"emulated":true,"pci_bus_id":"","health":"ok","health_note":"","links":{},"mig_profile":"","parent_uuid":"","foreign":[],"memory_used_mib":0,"utilisation_percent":0},{"uuid":"GPU-EMULATED-ed8b4587-1505-bba8-59e9-a32b589c54ae","index":1,"model":"Tesla T4","memory_mib":16384,"emulated":true,"pci_bus_id":"","health":"ok","health_note":"","links":{},"mig_profile":"","parent_uuid":"","foreign":[],"memory_used_mib":0,"utilisation_percent":0}],"emulated":true,"boot_id":"9bf4d20b-c553-470e-be46-a666866103c5","agent_version":"0.1.0","driver_version":"","cuda_version":"","labels":{},"warnings":[],"sharing":["advisory"],"address":"127.0.0.1","fences":true}','{}','{}');
CREATE TABLE projects (
	name VARCHAR(63) NOT NULL, 
	quota_permille INTEGER, 
	over_quota BOOLEAN NOT NULL, 
	limit_permille INTEGER, 
	user_limit_permille INTEGER, 
	members JSON NOT NULL, 
	max_time_s DOUBLE, 
	idle_timeout_s DOUBLE, 
	note TEXT NOT NULL, 
	compute_default VARCHAR(16), 
	compute_allowed JSON DEFAULT '[]' NOT NULL, 
	sharing_default VARCHAR(32), 
	sharing_allowed JSON DEFAULT '[]' NOT NULL, 
	department VARCHAR(63) DEFAULT '' NOT NULL, 
	weight DOUBLE DEFAULT '1' NOT NULL, 
	model_quotas JSON DEFAULT '[]' NOT NULL, 
	rules JSON DEFAULT '{}' NOT NULL, 
	CONSTRAINT pk_projects PRIMARY KEY (name)
);
INSERT INTO "projects" VALUES('default',NULL,1,NULL,NULL,'[]',NULL,NULL,'everybody''s',NULL,'[]',NULL,'[]','',1.0,'[]','{"min_runtime_s":null,"max_time_limit_s":null,"windows":[],"node_pools":[],"max_gpus_permille":null,"images":[],"volumes":[]}');
INSERT INTO "projects" VALUES('vision',1000,1,NULL,NULL,'[]',NULL,NULL,'',NULL,'[]',NULL,'[]','science',1.0,'[]','{"min_runtime_s":null,"max_time_limit_s":null,"windows":[],"node_pools":[],"max_gpus_permille":null,"images":[],"volumes":[]}');
CREATE TABLE replica_use (
	workload VARCHAR(16) NOT NULL, 
	replica_index INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	step_s INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	samples INTEGER NOT NULL, 
	busy_s DOUBLE NOT NULL, 
	idle_s DOUBLE NOT NULL, 
	gpu_memory_mean_mib DOUBLE NOT NULL, 
	gpu_memory_max_mib BIGINT NOT NULL, 
	cpu_s DOUBLE NOT NULL, 
	memory_max_mib BIGINT NOT NULL, 
	read_bytes BIGINT NOT NULL, 
	written_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_replica_use PRIMARY KEY (workload, replica_index, attempt, step_s, at)
)
 WITHOUT ROWID

;
CREATE TABLE replicas (
	workload VARCHAR(16) NOT NULL, 
	replica_index INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	attempt INTEGER NOT NULL, 
	node TEXT, 
	lease BIGINT, 
	pid INTEGER, 
	exit_status INTEGER, 
	reason VARCHAR(32) NOT NULL, 
	message TEXT NOT NULL, 
	next_reason VARCHAR(32), 
	failures INTEGER NOT NULL, 
	interruptions INTEGER NOT NULL, 
	queued_at DOUBLE NOT NULL, 
	not_before DOUBLE NOT NULL, 
	started_at DOUBLE, 
	finished_at DOUBLE, 
	last_active_at DOUBLE, 
	idle_warned BOOLEAN NOT NULL, 
	notes JSON, 
	version INTEGER NOT NULL, 
	sharing TEXT DEFAULT '' NOT NULL, 
	guarantee TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_replicas PRIMARY KEY (workload, replica_index), 
	CONSTRAINT fk_replicas_workload FOREIGN KEY(workload) REFERENCES workloads (id) ON DELETE CASCADE
);
INSERT INTO "replicas" VALUES('wkb5vkqzkwz',0,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538950376810860633e+09,0.0,1.79538950413069319728e+09,1.79538950413189458844e+09,1.79538950381116771699e+09,0,'["emulated GPU: the program runs on the CPU"]',3,'whole','Nobody else of the pool is on these GPUs.');
INSERT INTO "replicas" VALUES('wjhn3zxzzsd',0,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538950741014933587e+09,0.0,1.79538950771994924547e+09,1.79538950772306323054e+09,1.79538950745419502259e+09,0,'["emulated GPU: the program runs on the CPU"]',3,'whole','Nobody else of the pool is on these GPUs.');
INSERT INTO "replicas" VALUES('wrk6zq4yymr',0,'failed',2,'vm',NULL,NULL,3,'BACKOFF_EXHAUSTED','exited with status 3; no try is left of 1',NULL,2,0,1.79538951224318552015e+09,1.79538951424318552014e+09,1.79538951455630874627e+09,1.79538951459733200077e+09,1.79538951442284512517e+09,0,'["emulated GPU: the program runs on the CPU"]',6,'whole','Nobody else of the pool is on these GPUs.');
INSERT INTO "replicas" VALUES('wa5rrv3qq3y',0,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538952297830915446e+09,0.0,1.79538952336295294762e+09,1.79538952752030944821e+09,1.79538952307915163041e+09,0,'["emulated GPU: the program runs on the CPU","memory and compute of this slice are not enforced on this node: mode advisory"]',3,'advisory','Its part is told to the program and kept free for it; nothing enforces it.');
INSERT INTO "replicas" VALUES('wa5rrv3qq3y',1,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538952297830915446e+09,0.0,1.79538952338463735579e+09,1.79538952760199475291e+09,1.79538952307915163041e+09,0,'["emulated GPU: the program runs on the CPU","memory and compute of this slice are not enforced on this node: mode advisory"]',3,'advisory','Its part is told to the program and kept free for it; nothing enforces it.');
INSERT INTO "replicas" VALUES('wa5rrv3qq3y',2,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538952297830915446e+09,0.0,1.79538952774428749083e+09,1.79538953141346502304e+09,1.79538952755517625808e+09,0,'["emulated GPU: the program runs on the CPU","memory and compute of this slice are not enforced on this node: mode advisory"]',3,'advisory','Its part is told to the program and kept free for it; nothing enforces it.');
INSERT INTO "replicas" VALUES('wa5rrv3qq3y',3,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538952297830915446e+09,0.0,1.7953895279603538513e+09,1.79538953155102801325e+09,1.79538952771368479728e+09,0,'["emulated GPU: the program runs on the CPU","memory and compute of this slice are not enforced on this node: mode advisory"]',3,'advisory','Its part is told to the program and kept free for it; nothing enforces it.');
INSERT INTO "replicas" VALUES('wa5rrv3qq3y',4,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538952297830915446e+09,0.0,1.79538953192801618583e+09,1.7953895351926522255e+09,1.79538953159035491943e+09,0,'["emulated GPU: the program runs on the CPU","memory and compute of this slice are not enforced on this node: mode advisory"]',3,'advisory','Its part is told to the program and kept free for it; nothing enforces it.');
INSERT INTO "replicas" VALUES('wa5rrv3qq3y',5,'succeeded',1,'vm',NULL,NULL,0,'EXITED','exited with status 0',NULL,0,0,1.79538952297830915446e+09,0.0,1.79538953196273946754e+09,1.79538953501621937757e+09,1.79538953175074434279e+09,0,'["emulated GPU: the program runs on the CPU","memory and compute of this slice are not enforced on this node: mode advisory"]',3,'advisory','Its part is told to the program and kept free for it; nothing enforces it.');
INSERT INTO "replicas" VALUES('wq9vb9tnmq6',0,'stopped',1,'vm',NULL,NULL,143,'STOPPED_BY_USER','stopped by user',NULL,0,0,1.79538952473685121534e+09,0.0,1.79538952483982872966e+09,1.79538955144619131088e+09,1.79538952474272251128e+09,0,'["emulated GPU: the program runs on the CPU"]',4,'whole','Nobody else of the pool is on these GPUs.');
INSERT INTO "replicas" VALUES('wq9vb9tnmq6',1,'stopped',0,NULL,NULL,NULL,NULL,'STOPPED_BY_USER','',NULL,0,0,1.79538952473685121534e+09,0.0,NULL,1.79538955130693793295e+09,NULL,0,NULL,1,'','');
INSERT INTO "replicas" VALUES('wmjbe00tzws',0,'stopped',0,NULL,NULL,NULL,NULL,'STOPPED_BY_USER','',NULL,0,0,1.7953895286848535538e+09,0.0,NULL,1.79538955130693793295e+09,NULL,0,NULL,1,'','');
INSERT INTO "replicas" VALUES('w8gdem79fe6',0,'succeeded',1,'vm',NULL,NULL,NULL,'RELEASED','',NULL,0,0,1.79538953141365838052e+09,0.0,1.79538953159035491943e+09,1.79538955130693793295e+09,1.79538953159035491943e+09,0,NULL,2,'','');
CREATE TABLE sessions (
	secret_sha256 VARCHAR(64) NOT NULL, 
	user_name VARCHAR(63) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	origin VARCHAR(16) NOT NULL, 
	token_id VARCHAR(63) DEFAULT '' NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	last_used_at DOUBLE NOT NULL, 
	agent TEXT DEFAULT '' NOT NULL, 
	peer_uid BIGINT, 
	CONSTRAINT pk_sessions PRIMARY KEY (secret_sha256)
);
CREATE TABLE start_estimates (
	workload VARCHAR(16) NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	made_at DOUBLE NOT NULL, 
	predicted_s DOUBLE NOT NULL, 
	actual_s DOUBLE, 
	CONSTRAINT pk_start_estimates PRIMARY KEY (workload)
);
INSERT INTO "start_estimates" VALUES('wmjbe00tzws','default',1.79538955117270708082e+09,7.18046950912475585946e+03,NULL);
CREATE TABLE tokens (
	id VARCHAR(63) NOT NULL, 
	user_name VARCHAR(63) NOT NULL, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	revoked_at DOUBLE, 
	last_used_at DOUBLE, 
	note TEXT NOT NULL, 
	CONSTRAINT pk_tokens PRIMARY KEY (id)
);
INSERT INTO "tokens" VALUES('a3503132','ada','0000000000000000000000000000000000000000000000000000000000000000','member',1.79538950251223039631e+09,1.79798150251223039629e+09,NULL,NULL,'recorded');
CREATE TABLE users (
	name VARCHAR(63) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	uid BIGINT, 
	gpu_limit_permille INTEGER, 
	disabled BOOLEAN NOT NULL, 
	email TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (name)
);
INSERT INTO "users" VALUES('root','admin',0,NULL,0,'');
INSERT INTO "users" VALUES('ada','member',NULL,NULL,0,'');
CREATE TABLE workload_labels (
	workload VARCHAR(16) NOT NULL, 
	label TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_workload_labels PRIMARY KEY (workload, label), 
	CONSTRAINT fk_workload_labels_workload FOREIGN KEY(workload) REFERENCES workloads (id) ON DELETE CASCADE
);
INSERT INTO "workload_labels" VALUES('wjhn3zxzzsd','team','vision');
CREATE TABLE workloads (
	id VARCHAR(16) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	user_name VARCHAR(63) NOT NULL, 
	priority INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	suspended BOOLEAN NOT NULL, 
	stop_reason VARCHAR(32), 
	request_id TEXT, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	started_at DOUBLE, 
	finished_at DOUBLE, 
	deleted_at DOUBLE, 
	version INTEGER NOT NULL, 
	dependencies JSON, 
	spec JSON NOT NULL, 
	asked_permille BIGINT, 
	CONSTRAINT pk_workloads PRIMARY KEY (id)
);
INSERT INTO "workloads" VALUES('wkb5vkqzkwz','quick','run','default','root',0,'succeeded',0,NULL,'32de5fd05df02190a215f422105d07d4',1.79538950376810860633e+09,NULL,1.79538950413069319728e+09,1.79538950417930960653e+09,NULL,3,NULL,'{"uid":0,"preemptible":false,"completions":1,"parallelism":1,"on":null,"on_index":0,"labels":{},"windows":[],"parameters":[],"compute":"guarantee","program":{"argv":["true"],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"pipes","rows":24,"columns":80,"umask":18,"client_bound":true,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":1,"permille":1000,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":null,"idle_timeout_s":null,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"never","backoff_limit":0}}',1000);
INSERT INTO "workloads" VALUES('wjhn3zxzzsd','first','training','vision','root',0,'succeeded',0,NULL,'0820d24d9d8818cc30dcadccc64089fe',1.79538950741014933587e+09,NULL,1.79538950771994924547e+09,1.79538950777568316456e+09,NULL,3,NULL,'{"uid":0,"preemptible":true,"completions":1,"parallelism":1,"on":null,"on_index":0,"labels":{"team":"vision"},"windows":[],"parameters":[],"compute":"guarantee","program":{"argv":["true"],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"batch","rows":24,"columns":80,"umask":18,"client_bound":false,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":1,"permille":1000,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":null,"idle_timeout_s":null,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"on-failure","backoff_limit":6}}',1000);
INSERT INTO "workloads" VALUES('wrk6zq4yymr','fails','training','default','root',0,'failed',0,NULL,'7b6aa05568add23f58f581e6e3eca14c',1.79538951199626064299e+09,NULL,1.79538951220769453041e+09,1795389514.63417,NULL,5,NULL,'{"uid":0,"preemptible":true,"completions":1,"parallelism":1,"on":null,"on_index":0,"labels":{},"windows":[],"parameters":[],"compute":"guarantee","program":{"argv":["sh","-c","exit 3"],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"batch","rows":24,"columns":80,"umask":18,"client_bound":false,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":1,"permille":1000,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":null,"idle_timeout_s":null,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"on-failure","backoff_limit":1}}',1000);
INSERT INTO "workloads" VALUES('wa5rrv3qq3y','digits-sweep','training','default','root',0,'succeeded',0,NULL,'bd2ce127e216dee2103f0d67f3c07f70',1.79538952297830915446e+09,NULL,1.79538952336295294762e+09,1.79538953520986723898e+09,NULL,3,NULL,'{"uid":0,"preemptible":true,"completions":6,"parallelism":2,"on":null,"on_index":0,"labels":{},"windows":[],"parameters":[{"lr":0.005,"hidden":32},{"lr":0.005,"hidden":128},{"lr":0.05,"hidden":32},{"lr":0.05,"hidden":128},{"lr":0.5,"hidden":32},{"lr":0.5,"hidden":128}],"compute":"guarantee","program":{"argv":["python","examples/train_digits.py","--lr","{lr}","--hidden","{hidden}","--epochs","10"],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"batch","rows":24,"columns":80,"umask":18,"client_bound":false,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":1,"permille":250,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":600.0,"idle_timeout_s":null,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"on-failure","backoff_limit":6}}',500);
INSERT INTO "workloads" VALUES('wq9vb9tnmq6','gang','training','default','root',0,'stopped',0,'STOPPED_BY_USER','f93bb37ca2c086582b6f369170c99aeb',1.79538952473685121534e+09,NULL,1.79538952483982872966e+09,1.79538955147090101239e+09,NULL,4,NULL,'{"uid":0,"preemptible":true,"completions":2,"parallelism":2,"on":null,"on_index":0,"labels":{},"windows":[],"parameters":[],"compute":"guarantee","program":{"argv":["sleep","300"],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"batch","rows":24,"columns":80,"umask":18,"client_bound":false,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":1,"permille":1000,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":3600.0,"idle_timeout_s":null,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"on-failure","backoff_limit":6},"gang":{"least":1,"most":2,"within":"","strict":false,"mixed":false},"on_member_end":"continue"}',2000);
INSERT INTO "workloads" VALUES('wmjbe00tzws','waits','training','default','root',0,'stopped',0,'STOPPED_BY_USER','3833c0bbb3d040f1d2bb626a93706bfd',1.7953895286848535538e+09,NULL,NULL,1.79538955130693793295e+09,NULL,1,NULL,'{"uid":0,"preemptible":true,"completions":1,"parallelism":1,"on":null,"on_index":0,"labels":{},"windows":[],"parameters":[],"compute":"guarantee","program":{"argv":["sleep","1"],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"batch","rows":24,"columns":80,"umask":18,"client_bound":false,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":2,"permille":1000,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":null,"idle_timeout_s":null,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"on-failure","backoff_limit":6}}',2000);
INSERT INTO "workloads" VALUES('w8gdem79fe6','held','lease','default','root',0,'succeeded',0,'RELEASED','c25a40e61879e7ccbb8b8db9364f81fc',1.79538953141365838052e+09,1.79539673159035491943e+09,1.79538953159035491943e+09,1.79538955130693793295e+09,NULL,2,NULL,'{"uid":0,"preemptible":false,"completions":1,"parallelism":1,"on":null,"on_index":0,"labels":{},"windows":[],"parameters":[],"compute":"guarantee","program":{"argv":[],"env":{"LANG":"C.UTF-8"},"cwd":"/home/ada/project","stdio":"batch","rows":24,"columns":80,"umask":18,"client_bound":false,"tree":"","lock":"","env_from":{},"literal":false,"container":null},"gpus":{"count":1,"permille":250,"memory_mib":null,"models":[],"labels":[],"sharing":null,"placement":null},"limits":{"wait_s":null,"max_time_s":7200.0,"idle_timeout_s":1800.0,"grace_s":10.0,"notice_signal":"TERM","cpus":null,"memory_mib":null,"log_limit_mib":64,"ttl_s":null},"retry":{"policy":"never","backoff_limit":0}}',250);
CREATE INDEX ix_workloads_project ON workloads (project, created_at, id);
CREATE INDEX ix_workloads_user ON workloads (user_name, created_at, id);
CREATE INDEX ix_workloads_finished_at ON workloads (finished_at);
CREATE INDEX ix_workloads_longer_wanted ON workloads (finished_at) WHERE finished_at - created_at > 1209600;
CREATE INDEX ix_workloads_state ON workloads (state, created_at, id);
CREATE UNIQUE INDEX uq_workloads_live_name ON workloads (project, name) WHERE state NOT IN ('succeeded', 'failed', 'stopped') AND deleted_at IS NULL;
CREATE INDEX ix_workloads_not_ended ON workloads (created_at, id) WHERE state NOT IN ('succeeded', 'failed', 'stopped');
CREATE INDEX ix_workloads_waited ON workloads (created_at, kind, started_at, finished_at, project, user_name);
CREATE INDEX ix_workloads_name ON workloads (name, created_at, id);
CREATE INDEX ix_workloads_long_wanted ON workloads (created_at) WHERE finished_at - created_at > 86400 AND finished_at - created_at <= 1209600;
CREATE INDEX ix_workloads_history ON workloads (project, user_name, finished_at);
CREATE INDEX ix_workloads_created_at ON workloads (created_at, id);
CREATE UNIQUE INDEX uq_workloads_request_id ON workloads (request_id);
CREATE INDEX ix_workloads_asked ON workloads (created_at, asked_permille, project, user_name, kind, finished_at, state, id) WHERE state NOT IN ('succeeded', 'failed', 'stopped');
CREATE INDEX ix_leases_released_at ON leases (released_at);
CREATE INDEX ix_leases_longer_held ON leases (released_at) WHERE released_at - granted_at > 1209600;
CREATE INDEX ix_leases_long_held ON leases (granted_at) WHERE released_at - granted_at > 86400 AND released_at - granted_at <= 1209600;
CREATE INDEX ix_leases_workload ON leases (workload);
CREATE UNIQUE INDEX uq_leases_unreleased ON leases (workload, replica_index) WHERE released_at IS NULL;
CREATE INDEX ix_events_at ON events (at);
CREATE INDEX ix_events_actor ON events (actor, at) WHERE actor <> 'pool';
CREATE INDEX ix_events_reason ON events (reason, at) WHERE reason NOT IN ('SUBMITTED', 'GRANTED', 'STARTED', 'EXITED', 'RELEASED');
CREATE INDEX ix_events_target ON events (target, at) WHERE target <> '';
CREATE INDEX ix_events_workload ON events (workload, id);
CREATE INDEX ix_bookings_ends_at ON bookings (ends_at);
CREATE INDEX ix_start_estimates_made_at ON start_estimates (made_at);
CREATE INDEX ix_tokens_user_name ON tokens (user_name);
CREATE UNIQUE INDEX uq_tokens_secret_sha256 ON tokens (secret_sha256);
CREATE INDEX ix_sessions_user_name ON sessions (user_name);
CREATE INDEX ix_sessions_expires_at ON sessions (expires_at);
CREATE UNIQUE INDEX uq_join_tokens_secret_sha256 ON join_tokens (secret_sha256);
CREATE INDEX ix_gpu_use_at ON gpu_use (step_s, at);
CREATE INDEX ix_replica_use_at ON replica_use (step_s, at);
CREATE INDEX ix_workload_labels_value ON workload_labels (label, value, workload);
CREATE INDEX ix_lease_shares_taken ON lease_shares (gpu_uuid) WHERE released_at IS NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',53);
COMMIT;
