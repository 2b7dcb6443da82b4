"""Statements that clients of MySQL and MariaDB send, with their origin, for tests of the answers.

Origins are the client's source, or what came over the wire from it. Each statement has an answer, or the number of the
error that it gets. FLAVORS are the servers that the client takes; both, unless it is of one kind.
"""

from __future__ import annotations

from typing import NamedTuple

BOTH = ("mysql", "mariadb")
MYSQL = ("mysql",)
MARIADB = ("mariadb",)
UUID = "7f0b9a52-2f1b-11f0-9a52-7f0b9a522f1b"


class Client(NamedTuple):
    """What one client sends, in order: a statement, or (statement, number of the error that it gets)."""

    name: str
    origin: str
    statements: tuple[str | tuple[str, int], ...]
    flavors: tuple[str, ...] = BOTH


CLIENTS = [
    Client(
        "MariaDB replica by position",
        "MariaDB 10.11.19, on the wire; sql/slave.cc, get_master_version_and_clock",
        (
            "SELECT UNIX_TIMESTAMP()",
            "SHOW VARIABLES LIKE 'SERVER_ID'",
            "SET @master_heartbeat_period= 30000001024",
            "SET @master_binlog_checksum= @@global.binlog_checksum",
            "SELECT @master_binlog_checksum",
            "SET @mariadb_slave_capability=4",
            "SELECT binlog_gtid_pos('binlog.000001',4)",
            "SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'",
            "SET @rpl_semi_sync_slave= 1",
        ),
        MARIADB,
    ),
    Client(
        "MariaDB replica by GTID",
        "MariaDB 10.11.19, on the wire; sql/slave.cc",
        (
            "SELECT @@GLOBAL.gtid_domain_id",
            "SET @slave_connect_state='0-1-5'",
            "SET @slave_gtid_strict_mode=0",
            "SET @slave_gtid_ignore_duplicates=0",
            "SET @slave_until_gtid='0-1-9'",
        ),
        MARIADB,
    ),
    Client(
        "MySQL replica",
        "MySQL 9.7.4, on the wire; sql/rpl_replica.cc",
        (
            "SELECT UNIX_TIMESTAMP()",
            "SELECT @@GLOBAL.SERVER_ID",
            "SET @master_heartbeat_period = 30000001024, @source_heartbeat_period = 30000001024",
            "SET @master_binlog_checksum = @@global.binlog_checksum,"
            " @source_binlog_checksum = @@global.binlog_checksum",
            "SELECT @source_binlog_checksum",
            "SELECT @@GLOBAL.GTID_MODE",
            "SELECT @@GLOBAL.SERVER_UUID",
            f"SET @slave_uuid = '{UUID}', @replica_uuid = '{UUID}'",
            "SELECT @@global.rpl_semi_sync_source_enabled",
            "SET @rpl_semi_sync_replica = 1",
        ),
        MYSQL,
    ),
    Client(
        "MySQL 8.0 replica",
        "mysql-server 8.0, sql/rpl_slave.cc",
        (
            "SET @master_binlog_checksum= @@global.binlog_checksum",
            "SELECT @master_binlog_checksum",
            "SELECT @@global.rpl_semi_sync_master_enabled",
            "SET @rpl_semi_sync_slave= 1",
        ),
        MYSQL,
    ),
    Client(
        "mysqlbinlog of MySQL",
        "MySQL 9.7.4, on the wire",
        ("SELECT VERSION()", "SET @master_binlog_checksum = 'NONE', @source_binlog_checksum = 'NONE'"),
        MYSQL,
    ),
    Client(
        "mysqlbinlog of MariaDB",
        "MariaDB 10.11.19, on the wire",
        ("SELECT VERSION()", "SET @master_binlog_checksum='NONE'", "SET @mariadb_slave_capability=4"),
        MARIADB,
    ),
    Client(
        "mysql, the client",
        "MySQL 9.7.4 and MariaDB 10.11.19, on the wire",
        (
            "select @@version_comment limit 1",
            "show databases",
            "SELECT DATABASE()",
            "show tables",
            "select USER()",
            "SHOW WARNINGS",
        ),
    ),
    Client(
        "python-mysql-replication",
        "1.0.17, binlogstream.py",
        (
            "SHOW VARIABLES LIKE 'BINLOG_ROW_METADATA'",
            "SET NAMES utf8",
            "SET AUTOCOMMIT = 0",
            "SHOW GLOBAL VARIABLES LIKE 'BINLOG_CHECKSUM'",
            "set @master_binlog_checksum= @@global.binlog_checksum",
            "set @master_heartbeat_period= 1000000000",
            "SET @mariadb_slave_capability=4",
            "SHOW MASTER STATUS",
        ),
    ),
    Client(
        "zongji",
        "0.5.1, @vlasky/zongji 0.9 and @powersync/mysql-zongji 0.6, index.js",
        (
            "SELECT VERSION() AS version",
            "select @@GLOBAL.binlog_checksum as checksum",
            "set @master_binlog_checksum='CRC32'",
            "SELECT COLUMN_NAME, COLLATION_NAME, CHARACTER_SET_NAME, COLUMN_COMMENT, COLUMN_TYPE FROM"
            " INFORMATION_SCHEMA.COLUMNS WHERE table_schema='d' AND table_name='t' ORDER BY ORDINAL_POSITION",
            "SHOW BINARY LOGS",
            ("KILL 999", 1094),
        ),
    ),
    Client(
        "mysql-event-stream",
        "1.8.0, on the wire",
        (
            *(
                f"SHOW VARIABLES WHERE Variable_name = '{name}'"
                for name in (
                    *("log_bin", "gtid_mode", "binlog_format", "binlog_row_image", "binlog_transaction_compression"),
                    *("binlog_row_value_options", "log_bin_compress"),
                )
            ),
            "SET @source_binlog_checksum='CRC32'",
            "SELECT @@GLOBAL.binlog_checksum",
            "SELECT @@GLOBAL.gtid_purged",
        ),
        MYSQL,
    ),
    Client(
        "go-mysql canal",
        "1.11, replication/binlogsyncer.go and canal/",
        (
            "SHOW GLOBAL VARIABLES LIKE 'binlog_format'",
            "SHOW GLOBAL VARIABLES LIKE 'BINLOG_CHECKSUM'",
            "SET NAMES utf8mb4",
            "SET @master_binlog_checksum='NONE'",
            f"SET @slave_uuid = '{UUID}', @replica_uuid = '{UUID}'",
            "show full columns from `d`.`t`",
            "show index from `d`.`t`",
        ),
    ),
    Client(
        "Debezium and Connector/J",
        "3.6.3 and 9.1, on the wire; BinlogConnectorConnection.java, BinlogSnapshotChangeEventSource.java",
        (
            "/* mysql-connector-j-9.1.0 (Revision: 0) */SELECT  @@session.auto_increment_increment AS"
            " auto_increment_increment, @@character_set_client AS character_set_client, @@character_set_connection AS"
            " character_set_connection, @@character_set_results AS character_set_results, @@character_set_server AS"
            " character_set_server, @@collation_server AS collation_server, @@collation_connection AS"
            " collation_connection, @@init_connect AS init_connect, @@interactive_timeout AS interactive_timeout,"
            " @@license AS license, @@lower_case_table_names AS lower_case_table_names, @@max_allowed_packet AS"
            " max_allowed_packet, @@net_write_timeout AS net_write_timeout, @@performance_schema AS"
            " performance_schema, @@sql_mode AS sql_mode, @@system_time_zone AS system_time_zone, @@time_zone AS"
            " time_zone, @@transaction_isolation AS transaction_isolation, @@wait_timeout AS wait_timeout",
            "SET character_set_results = NULL",
            "SET autocommit=1, sql_mode=CONCAT(@@sql_mode,',STRICT_TRANS_TABLES')",
            "SET autocommit=0",
            "SELECT 1",
            "SHOW BINARY LOG STATUS",
            "SHOW MASTER STATUS",
            "SELECT version()",
            "ROLLBACK",
            "SHOW VARIABLES",
            "SHOW GLOBAL VARIABLES LIKE 'binlog_format'",
            "SHOW GLOBAL VARIABLES LIKE 'binlog_row_image'",
            "SHOW GLOBAL VARIABLES LIKE 'GTID_MODE'",
            "SHOW DATABASES",
            "SHOW FULL TABLES IN `information_schema` where Table_Type = 'BASE TABLE'",
            "SHOW FULL TABLES IN `d` where Table_Type = 'BASE TABLE'",
            "SELECT @@session.transaction_isolation",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SET SESSION lock_wait_timeout=10",
            ("SET SESSION innodb_lock_wait_timeout=10", 1193),  # it warns, and continues
            "FLUSH TABLES WITH READ LOCK",
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            "SHOW MASTER STATUS",
            "SHOW VARIABLES WHERE Variable_name = 'sql_mode'",
            "SHOW VARIABLES WHERE Variable_name IN ('character_set_server','collation_server')",
            "SELECT schema_name, default_character_set_name, default_collation_name FROM information_schema.schemata",
            "SHOW CREATE TABLE `d`.`t`",
            "UNLOCK TABLES",
            "USE `d`;",
            "SHOW TABLE STATUS LIKE 't';",
            "SELECT CURRENT_TIMESTAMP",
            "SET net_write_timeout=600",
            "SELECT `id`, `text` FROM `d`.`t`",
            "SHOW SESSION STATUS LIKE 'Ssl_version'",
            "COMMIT",
            "SHOW BINARY LOGS",
            f"SELECT GTID_SUBTRACT('{UUID}:1-421', '{UUID}:1-336')",
            f"SELECT GTID_SUBTRACT('{UUID}:337-421', '')",
            ("SELECT COUNT(1) FROM `d`.`t`", 1235),  # only with snapshot.max.threads
            "SELECT @@global.gtid_purged",
            "show global variables like 'binlog_checksum'",
            "set @master_binlog_checksum= @@global.binlog_checksum",
            "select @@server_id",
            "set @master_heartbeat_period=48000000000",
        ),
        MYSQL,
    ),
    Client(
        "rivet",
        "0.32, on the wire",
        (
            ("PROXYSQL INTERNAL SESSION", 1235),
            "SELECT CONNECTION_ID()",
            "SELECT @@global.server_id",
            "SHOW REPLICA STATUS",
        ),
    ),
    Client(
        "Maxwell",
        "MaxwellMysqlStatus.java, SchemaCapturer.java",
        (
            *(
                f"SHOW VARIABLES LIKE '{name}'"
                for name in ("server_id", "log_bin", "binlog_format", "binlog_row_image", "gtid_mode")
            ),
            "SELECT @@lower_case_table_names",
            "select @@character_set_server",
            "SELECT SCHEMA_NAME FROM INFORMATION_SCHEMA.SCHEMATA",
            ("SELECT * FROM INFORMATION_SCHEMA.COLLATION_CHARACTER_SET_APPLICABILITY", 1109),
            "SELECT * FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'd' AND TABLE_NAME IN ('t', 'u')",
            "SELECT * FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_SCHEMA='d'",
            "SHOW MASTER STATUS",
            "SHOW BINARY LOG STATUS",
            "SHOW BINLOG STATUS",
        ),
    ),
    Client(
        "canal",
        "MysqlConnection.java",
        (
            "set wait_timeout=9999999",
            "set net_write_timeout=7200",
            "set net_read_timeout=7200",
            "set names 'binary'",
            "set @master_binlog_checksum= @@global.binlog_checksum",
            "set @slave_uuid=uuid()",
            "SET @mariadb_slave_capability='4'",
            "SET @master_heartbeat_period=15000000000",
            "select @@global.binlog_checksum",
            "select @@version_comment",
            "show variables like 'binlog_format'",
            "show variables like 'binlog_row_image'",
            "show master status",
            ("show binlog events limit 1", 1235),
            ("show create table `d`.`t`;show create table `d`.`t`;", 1235),
        ),
    ),
    Client(
        "Flink CDC",
        "StatementUtils.java, DebeziumUtils.java",
        (
            "SHOW VARIABLES LIKE 'binlog_row_value_options'",
            "SELECT TIME_TO_SEC(TIMEDIFF(NOW(), UTC_TIMESTAMP()))",
            "SHOW TABLE STATUS LIKE 't'",
            ("SELECT MIN(`id`), MAX(`id`) FROM `d`.`t`", 1235),
            ("DESC `d`.`t`", 1235),
        ),
    ),
    Client(
        "Tidemark, its first copy",
        "replication/ingest/copy.py",
        (
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION sql_mode = ''",
            "SET SESSION sql_quote_show_create = 1",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            "SHOW STATUS LIKE 'binlog_snapshot_%'",
            "ROLLBACK",
        ),
    ),
]
# What is never said to be done.
REFUSED = [
    *("INSERT INTO d.t VALUES (1)", "UPDATE d.t SET id=1", "DELETE FROM d.t", "REPLACE INTO d.t VALUES (1)"),
    *("DROP TABLE d.t", "CREATE TABLE d.u (id INT)", "ALTER TABLE d.t ADD x INT", "TRUNCATE d.t"),
    *("FLUSH TABLES", "FLUSH LOGS", "RESET MASTER", "PURGE BINARY LOGS TO 'binlog.000002'", "BEGIN"),
    *("START TRANSACTION", "LOCK TABLES d.t READ", "CALL x()", "LOAD DATA INFILE 'x' INTO TABLE d.t", "DO 1"),
    *("PREPARE x FROM 'SELECT 1'", "EXECUTE x", "CREATE USER x IDENTIFIED BY 'y'", "GRANT ALL ON *.* TO x"),
    *("SET ROLE x", "CHANGE MASTER TO MASTER_HOST='x'", "START SLAVE", "STOP SLAVE", "SHUTDOWN"),
    *("SELECT 1 INTO OUTFILE 'x'", "SELECT LOAD_FILE('/etc/passwd')", "SELECT SLEEP(10)", "SELECT 1; SELECT 2"),
    *("SELECT 1+1", "SELECT COUNT(*) FROM d.t", "SELECT * FROM d.t WHERE id=1", "SELECT * FROM d.t, d.t"),
    *("SHOW PROCESSLIST", "SHOW ENGINES", "KILL QUERY 1", "", ";", "SELECT", "SHOW", "SET", "(", "'", "/*", "\0"),
]
